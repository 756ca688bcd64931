package main

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/hawser-io/hawser/pkg/transport"
)

type unreachable struct{}

func (unreachable) Dial(context.Context) (transport.Conn, error) {
	return nil, &transport.Error{Code: transport.CodeUnavailable, Message: "tcp: no program listens at broker.example:8090"}
}

// An unreachable broker causes one Event about the Lease, with the reason and the next step.
func TestOutage_IsReportedOnTheHub(t *testing.T) {
	hub := fake.NewClientset()
	o := newOutage(unreachable{}, hub.CoreV1(), "hawser", "hawser-hub-source")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- o.Run(ctx) }()
	for range 3 {
		if _, err := o.Dial(ctx); err == nil {
			t.Fatal("it was reached")
		}
	}
	var events []corev1.Event
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		list, err := hub.CoreV1().Events("hawser").List(ctx, metav1.ListOptions{})
		if err == nil {
			events = list.Items
		}
		return len(events) > 0, err
	})
	if err != nil {
		t.Fatal(err)
	}
	e := events[0]
	if e.Type != corev1.EventTypeWarning || e.InvolvedObject.Kind != "Lease" || !strings.Contains(e.Message, "no program listens at broker.example:8090") || !strings.Contains(e.Message, "hawser-hub-source doctor") {
		t.Errorf("the Event is %+v", e)
	}
	stopped, stop := context.WithCancel(ctx)
	stop()
	if _, err := o.Dial(stopped); err == nil || len(o.failed) > 1 {
		t.Errorf("a program that ends reports an outage: %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
