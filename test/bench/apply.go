package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workclient "open-cluster-management.io/api/client/work/clientset/versioned"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/childproc"
)

const applied = `apiVersion: work.open-cluster-management.io/v1
kind: ManifestWork
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  workload:
    manifests:
    - {apiVersion: v1, kind: ConfigMap, metadata: {name: %[1]s, namespace: default}, data: {k: v}}
`

// apply runs kubectl apply for new works in turn, and waits until each is Applied. It measures two times: from
// the start of kubectl, and from the moment the hub had the object.
func (b *bench) apply(ctx context.Context) error {
	cfg, err := b.fleet.Hub.RESTConfig()
	if err != nil {
		return err
	}
	c, err := workclient.NewForConfig(cfg)
	if err != nil {
		return err
	}
	var felt, stored []time.Duration
	for range applySamples {
		f, s, err := b.applyOnce(ctx, c, fmt.Sprintf("bench-%d", b.version.Add(1)))
		if err != nil {
			return err
		}
		felt, stored = append(felt, f), append(stored, s)
	}
	r := &b.results
	r.apply50 = append(r.apply50, milliseconds(percentile(felt, 50)))
	r.apply99 = append(r.apply99, milliseconds(percentile(felt, 99)))
	r.stored50 = append(r.stored50, milliseconds(percentile(stored, 50)))
	r.stored99 = append(r.stored99, milliseconds(percentile(stored, 99)))
	return nil
}

func (b *bench) applyOnce(ctx context.Context, c workclient.Interface, name string) (felt, stored time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	file := filepath.Join(b.dir, "work.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, applied, name, cluster), 0o600); err != nil {
		return 0, 0, err
	}
	w, err := c.WorkV1().ManifestWorks(cluster).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		return 0, 0, err
	}
	defer w.Stop()
	began := time.Now()
	kubectl := make(chan error, 1)
	go func() {
		_, err := childproc.Run(ctx, b.fleet.Kubectl(), "--kubeconfig", b.fleet.Hub.KubeconfigPath, "apply", "-f", file)
		kubectl <- err
	}()
	var seen time.Time
	for e := range w.ResultChan() {
		work, ok := e.Object.(*workv1.ManifestWork)
		if !ok {
			return 0, 0, fmt.Errorf("watch: %v", e.Object)
		}
		if seen.IsZero() {
			seen = time.Now()
		}
		if meta.IsStatusConditionTrue(work.Status.Conditions, workv1.WorkApplied) {
			felt, stored = time.Since(began), time.Since(seen)
			return felt, stored, <-kubectl
		}
	}
	return 0, 0, fmt.Errorf("%s was not Applied: %w", name, ctx.Err())
}
