package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

// A start needs 3 s on two idle cores. A busy machine may be twenty times slower.
const (
	readyTimeout = 2 * time.Minute
	readyPoll    = 20 * time.Millisecond
)

func waitForAPIServer(ctx context.Context, client kubernetes.Interface) error {
	return waitUntil(ctx, "kube-apiserver is not ready", func(ctx context.Context) error {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// waitForControllers returns when the controllers work. It checks the default ServiceAccount, which every pod
// needs.
func waitForControllers(ctx context.Context, client kubernetes.Interface) error {
	return waitUntil(ctx, "the controllers do not work", func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// waitUntil repeats a probe until it succeeds. failure begins the error after a timeout. If ctx ends first, the
// error is the cause of ctx.
func waitUntil(ctx context.Context, failure string, probe func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, readyPoll, readyTimeout, true, func(ctx context.Context) (bool, error) {
		if err := probe(ctx); err != nil {
			if ctx.Err() == nil {
				last = err
			}
			return false, nil
		}
		return true, nil
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return fmt.Errorf("%s after %v; the log above may say why: %w", failure, readyTimeout, errors.Join(last, err))
}
