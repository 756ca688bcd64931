package demo

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	workclient "open-cluster-management.io/api/client/work/clientset/versioned"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/local/fleet"
)

const (
	exampleFile    = "docs/examples/first-work.yaml"
	exampleCluster = "cluster1"
	exampleWork    = "first-work"
	// tourWithin bounds each step of the tour.
	tourWithin = time.Minute
)

// tour applies the example and follows it to the cluster and back.
func (d *Demo) tour(ctx context.Context, f *fleet.Fleet) error {
	shown := map[string]metav1.Condition{}
	hubConfig := f.Hub.KubeconfigPath
	file := filepath.Join(d.Root, exampleFile)
	d.printf("kubectl apply -f %s   (on the hub)", file)
	if _, err := childproc.Run(ctx, f.Kubectl(), "--kubeconfig", hubConfig, "apply", "-f", file); err != nil {
		return err
	}
	if err := d.follow(ctx, f, shown); err != nil {
		return err
	}
	managed := f.Clusters[exampleCluster].KubeconfigPath
	out, err := childproc.Run(ctx, f.Kubectl(), "--kubeconfig", managed, "get", "appliedmanifestworks", "-o", "name")
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(out)) == "" {
		return fmt.Errorf("no AppliedManifestWork on %s", exampleCluster)
	}
	d.printf("on %s: %s", exampleCluster, strings.TrimSpace(string(out)))
	_, err = childproc.Run(ctx, f.Kubectl(), "--kubeconfig", managed, "-n", "default", "wait",
		"--for=condition=Available", "--timeout=60s", "deployment", "--all")
	if err != nil {
		return err
	}
	out, err = childproc.Run(ctx, f.Kubectl(), "--kubeconfig", managed, "-n", "default", "get", "deployments,serviceaccounts")
	if err != nil {
		return err
	}
	fmt.Fprintf(d.Out, "\n%s\n", out)
	if out, err = childproc.Run(ctx, f.Kubectl(), "--kubeconfig", hubConfig, "get", "manifestworks", "-A"); err != nil {
		return err
	}
	d.printf("kubectl get manifestworks -A   (on the hub)")
	fmt.Fprintf(d.Out, "\n%s\n", out)
	return d.loseBrokers(ctx, f, shown)
}

// loseBrokers kills one broker after the other, if there are several, and changes the work meanwhile.
func (d *Demo) loseBrokers(ctx context.Context, f *fleet.Fleet, shown map[string]metav1.Condition) error {
	names := f.Brokers()
	if len(names) == 1 {
		return nil
	}
	for i, name := range names {
		d.printf("kill -9 of %s, and a change of the work: %d replicas", name, i+2)
		f.Program(name).Kill()
		patch := fmt.Sprintf(`[{"op":"replace","path":"/spec/workload/manifests/1/spec/replicas","value":%d}]`, i+2)
		_, err := childproc.Run(ctx, f.Kubectl(), "--kubeconfig", f.Hub.KubeconfigPath, "-n", exampleCluster, "patch", "manifestwork", exampleWork, "--type=json", "-p", patch)
		if err != nil {
			return err
		}
		if err := d.follow(ctx, f, shown); err != nil {
			return err
		}
		if err := f.Program(name).Start(ctx); err != nil {
			return err
		}
		d.printf("%s is back", name)
	}
	return nil
}

// follow prints changes of the work's conditions, which it notes in shown, until its latest version is Applied and
// Available.
func (d *Demo) follow(ctx context.Context, f *fleet.Fleet, shown map[string]metav1.Condition) error {
	cfg, err := f.Hub.RESTConfig()
	if err != nil {
		return err
	}
	c, err := workclient.NewForConfig(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, tourWithin, fmt.Errorf("the work was not Applied and Available within %s; logs are in %s", tourWithin, f.LogDir()))
	defer cancel()
	w, err := c.WorkV1().ManifestWorks(exampleCluster).Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", exampleWork).String(),
	})
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case e, ok := <-w.ResultChan():
			if !ok {
				return errors.Join(errors.New("the hub ended the watch"), context.Cause(ctx))
			}
			work, ok := e.Object.(*workv1.ManifestWork)
			if !ok || e.Type == watch.Deleted {
				return fmt.Errorf("unexpected %s while watching the work", e.Type)
			}
			if d.showConditions(work, shown) {
				return nil
			}
		}
	}
}

// showConditions prints new conditions and reports whether the latest version of the work is Applied and Available.
func (d *Demo) showConditions(work *workv1.ManifestWork, shown map[string]metav1.Condition) bool {
	for _, c := range work.Status.Conditions {
		if old, ok := shown[c.Type]; ok && old.Status == c.Status && old.Reason == c.Reason && old.Message == c.Message && old.ObservedGeneration == c.ObservedGeneration {
			continue
		}
		shown[c.Type] = c
		d.printf("ManifestWork %s/%s: %s=%s %s: %s", work.Namespace, work.Name, c.Type, c.Status, c.Reason, c.Message)
	}
	applied := meta.FindStatusCondition(work.Status.Conditions, workv1.WorkApplied)
	return applied != nil && applied.Status == metav1.ConditionTrue && applied.ObservedGeneration == work.Generation &&
		meta.IsStatusConditionTrue(work.Status.Conditions, workv1.WorkAvailable)
}

// instructions prints commands to copy into another terminal.
func (d *Demo) instructions(f *fleet.Fleet) {
	fmt.Fprintf(d.Out, `
Everything is running. In another terminal:

  export PATH=%[8]s:%[1]s:$PATH
  export HUB=%[2]s
  export CLUSTER1=%[3]s

  # the hub's view, and the cluster's
  kubectl --kubeconfig $HUB get manifestwork -A
  kubectl --kubeconfig $CLUSTER1 get deployments,appliedmanifestworks

  # edit the work: three replicas
  kubectl --kubeconfig $HUB -n %[4]s patch manifestwork %[5]s --type=json \
    -p '[{"op":"replace","path":"/spec/workload/manifests/1/spec/replicas","value":3}]'

  # delete it: the objects go, then the work
  kubectl --kubeconfig $HUB -n %[4]s delete manifestwork %[5]s
%[6]s
Logs are in %[7]s. Ctrl-C stops it all.
`, filepath.Dir(f.Kubectl()), f.Hub.KubeconfigPath, f.Clusters[exampleCluster].KubeconfigPath, exampleCluster, exampleWork,
		d.stream(f), f.LogDir(), filepath.Join(d.Root, "bin"))
}

// stream returns the text about the event stream of Hawser's broker.
func (d *Demo) stream(f *fleet.Fleet) string {
	if d.Transport == fleet.Mosquitto {
		return ""
	}
	p := f.PKI()
	return fmt.Sprintf(`
  # look at the stream, as a source of your own: the statuses of its works
  make --silent -C %[1]s grpcurl
  grpcurl -cacert %[2]s -cert %[3]s -key %[4]s \
    -d '{"source":"program","data_type":"io.open-cluster-management.works.v1alpha1.manifestbundles"}' \
    %[5]s io.cloudevents.v1.CloudEventService/Subscribe
`,
		d.Root, p.CACert(), p.Cert("source", "program"), p.Key("source", "program"), f.BrokerAddr())
}
