package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	workclient "open-cluster-management.io/api/client/work/clientset/versioned"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/local/fleet"
)

const (
	// There are workCount works with manifestsPerWork manifests each, in spaceCount namespaces.
	workCount        = 200
	manifestsPerWork = 5
	spaceCount       = 20
	// coldRounds is the number of first starts.
	coldRounds = 3
	// changeSamples is the number of changes of each kind in each round.
	changeSamples = 12
	// restTime is the duration in which the idle requests are counted.
	restTime = 2 * time.Minute
	// quiet is the wait before that, settle the wait before a start.
	quiet  = 20 * time.Second
	settle = 5 * time.Second

	// ocmReadsPerManifest is the reads per second of OCM's agent. It reads every manifest in each status run, on
	// average every 1.45 intervals of 10 s.
	ocmReadsPerManifest = 1 / (1.45 * 10)
	// lookAgain is the interval at which the agent reads everything, also without events of watches; see
	// pkg/agent.
	lookAgain = 75 * time.Minute
)

// fixtures are on the cluster before the works: a kind whose status only the bench writes, the agent's right to
// it, and the namespaces.
func fixtures() string {
	var b strings.Builder
	b.WriteString(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gauges.bench.example.com}
spec:
  group: bench.example.com
  scope: Namespaced
  names: {kind: Gauge, listKind: GaugeList, plural: gauges, singular: gauge}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: bench-gauges, labels: {open-cluster-management.io/aggregate-to-work: "true"}}
rules:
- {apiGroups: [bench.example.com], resources: [gauges], verbs: [get, list, watch, create, update, patch, delete]}
`)
	for i := range spaceCount {
		fmt.Fprintf(&b, "---\n{apiVersion: v1, kind: Namespace, metadata: {name: %s}}\n", spaceOf(i))
	}
	return b.String()
}

// mixed is the template of one work. Name and namespace of its objects are filled in.
const mixed = `apiVersion: work.open-cluster-management.io/v1
kind: ManifestWork
metadata: {name: %[1]s, namespace: %[3]s}
spec:
  workload:
    manifests:
    - {apiVersion: v1, kind: ServiceAccount, metadata: {name: %[1]s, namespace: %[2]s}}
    - {apiVersion: v1, kind: ConfigMap, metadata: {name: %[1]s, namespace: %[2]s}, data: {k: v}}
    - {apiVersion: v1, kind: Service, metadata: {name: %[1]s, namespace: %[2]s}, spec: {selector: {app: %[1]s}, ports: [{port: 80}]}}
    - apiVersion: apps/v1
      kind: Deployment
      metadata: {name: %[1]s, namespace: %[2]s}
      spec:
        replicas: 1
        selector: {matchLabels: {app: %[1]s}}
        template: {metadata: {labels: {app: %[1]s}}, spec: {serviceAccountName: %[1]s, containers: [{name: c, image: example.com/c:1}]}}
    - {apiVersion: bench.example.com/v1, kind: Gauge, metadata: {name: %[1]s, namespace: %[2]s}, spec: {wanted: 1}}
  manifestConfigs:
  - resourceIdentifier: {group: apps, resource: deployments, namespace: %[2]s, name: %[1]s}
    feedbackRules: [{type: WellKnownStatus}]
  - resourceIdentifier: {group: bench.example.com, resource: gauges, namespace: %[2]s, name: %[1]s}
    feedbackRules: [{type: JSONPaths, jsonPaths: [{name: value, path: .status.value}]}]
`

var (
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	gauges     = schema.GroupVersionResource{Group: "bench.example.com", Version: "v1", Resource: "gauges"}
)

func workOf(i int) string  { return fmt.Sprintf("mixed-%03d", i) }
func spaceOf(i int) string { return fmt.Sprintf("bench-%02d", i%spaceCount) }

// worksBench measures the cost of the agent for its cluster, and its speed, with many works.
type worksBench struct {
	*bench
	hub     workclient.Interface
	objects dynamic.Interface
	bare    bareClient
	agent   *fleet.Program
	next    int // number of the next sample
}

// works runs all measurements with many works.
func (b *bench) works(ctx context.Context) error {
	w, err := b.newWorks(ctx)
	if err != nil {
		return err
	}
	b.printf("%d works of %d manifests in %d namespaces", workCount, manifestsPerWork, spaceCount)
	for _, step := range []func(context.Context) error{w.coldStarts, w.restart, w.changes, w.atRest} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) printf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...)
}

func (b *bench) newWorks(ctx context.Context) (*worksBench, error) {
	w := &worksBench{bench: b, agent: b.fleet.Program(fleet.AgentOf(cluster))}
	hub, err := b.fleet.Hub.RESTConfig()
	if err != nil {
		return nil, err
	}
	if w.hub, err = workclient.NewForConfig(hub); err != nil {
		return nil, err
	}
	managed, err := b.fleet.Clusters[cluster].RESTConfig()
	if err != nil {
		return nil, err
	}
	if w.objects, err = dynamic.NewForConfig(managed); err != nil {
		return nil, err
	}
	if w.bare, err = newBareClient(managed); err != nil {
		return nil, err
	}
	if err := w.clear(ctx); err != nil {
		return nil, err
	}
	if err := w.kubectl(ctx, b.fleet.Clusters[cluster].KubeconfigPath, "fixtures.yaml", fixtures()); err != nil {
		return nil, err
	}
	return w, nil
}

// clear deletes the works of earlier measurements, and waits until they are gone.
func (w *worksBench) clear(ctx context.Context) error {
	all := w.hub.WorkV1().ManifestWorks(cluster)
	if err := all.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return err
	}
	return w.until(ctx, "the works from before to be gone", func(ctx context.Context) (bool, error) {
		l, err := all.List(ctx, metav1.ListOptions{})
		return err == nil && len(l.Items) == 0, err
	})
}

// kubectl applies YAML as an administrator.
func (w *worksBench) kubectl(ctx context.Context, kubeconfig, name, text string) error {
	file := filepath.Join(w.dir, name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	_, err := childproc.Run(ctx, w.fleet.Kubectl(), "--kubeconfig", kubeconfig, "apply", "--server-side", "-f", file)
	return err
}

// until waits up to a few minutes for a condition.
func (w *worksBench) until(ctx context.Context, what string, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := done(ctx); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		}
	}
}

// coldStarts alternates first starts of the agent, without hub-source and with it, with the same requests of a
// bare client. All programs share the processors of this machine, so the comparison leaves out the work of the hub.
func (w *worksBench) coldStarts(ctx context.Context) error {
	for range coldRounds {
		for _, step := range []func(context.Context) error{w.aloneStart, w.bareStart, w.coldStart} {
			if err := w.clear(ctx); err != nil {
				return err
			}
			if err := step(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// aloneStart starts the agent while all works are at the broker and hub-source is down. It measures the writes.
func (w *worksBench) aloneStart(ctx context.Context) error {
	before, err := w.publish(ctx)
	if err != nil {
		return err
	}
	hubSource := w.fleet.Program(fleet.HubSource)
	if err := hubSource.Stop(); err != nil {
		return err
	}
	alone, err := w.timed(ctx, w.allLookedAt)
	if err != nil {
		return err
	}
	r := &w.results
	r.writing, r.coldRequests = append(r.writing, alone.writing.Seconds()), alone.requests
	if err := hubSource.Start(ctx); err != nil {
		return err
	}
	return w.allApplied(ctx, before)
}

// bareStart lets the bare client send as many requests as the last start of the agent, while the agent is
// down.
func (w *worksBench) bareStart(ctx context.Context) error {
	if err := w.rest(ctx, settle); err != nil {
		return err
	}
	if err := w.agent.Stop(); err != nil {
		return err
	}
	r := &w.results
	took, err := w.bare.run(ctx, r.coldRequests)
	if err != nil {
		return err
	}
	w.printf("a bare client sent %d requests in %s", r.coldRequests, took.Round(10*time.Millisecond))
	r.bare = append(r.bare, took.Seconds())
	if err := w.bare.clear(ctx); err != nil {
		return err
	}
	if err := w.rest(ctx, settle); err != nil {
		return err
	}
	return w.agent.Start(ctx)
}

// publish stops the agent, and brings all works to the broker. It returns the resource version of the works on the
// hub before.
func (w *worksBench) publish(ctx context.Context) (version string, err error) {
	if err := w.agent.Stop(); err != nil {
		return "", err
	}
	all := w.hub.WorkV1().ManifestWorks(cluster)
	before, err := all.List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	published, err := metric(ctx, w.fleet.Program(fleet.HubSource).Admin, "hawser_hubsource_publishes_total", `result="accepted"`)
	if err != nil {
		return "", err
	}
	var text []string
	for i := range workCount {
		text = append(text, fmt.Sprintf(mixed, workOf(i), spaceOf(i), cluster))
	}
	if err := w.kubectl(ctx, w.fleet.Hub.KubeconfigPath, "works.yaml", strings.Join(text, "---\n")); err != nil {
		return "", err
	}
	if err := w.until(ctx, "the works to be at the broker", func(ctx context.Context) (bool, error) {
		n, err := metric(ctx, w.fleet.Program(fleet.HubSource).Admin, "hawser_hubsource_publishes_total", `result="accepted"`)
		return n >= published+workCount, err
	}); err != nil {
		return "", err
	}
	return before.ResourceVersion, w.rest(ctx, settle)
}

// coldStart starts the agent while all works are at the broker. It measures the time until the hub shows all of
// them as applied.
func (w *worksBench) coldStart(ctx context.Context) error {
	before, err := w.publish(ctx)
	if err != nil {
		return err
	}
	cold, err := w.timed(ctx, func(ctx context.Context) (time.Time, error) {
		err := w.allApplied(ctx, before)
		return time.Now(), err
	})
	w.results.cold = append(w.results.cold, cold.took.Seconds())
	return err
}

// allApplied watches the hub until every work has been shown as applied.
func (w *worksBench) allApplied(ctx context.Context, since string) error {
	stream, err := w.hub.WorkV1().ManifestWorks(cluster).Watch(ctx, metav1.ListOptions{ResourceVersion: since})
	if err != nil {
		return err
	}
	defer stream.Stop()
	done := map[string]bool{}
	for e := range stream.ResultChan() {
		work, ok := e.Object.(*workv1.ManifestWork)
		if !ok {
			return fmt.Errorf("watch: %v", e.Object)
		}
		if meta.IsStatusConditionTrue(work.Status.Conditions, workv1.WorkApplied) {
			done[work.Name] = true
		}
		if len(done) == workCount {
			return nil
		}
	}
	return fmt.Errorf("%d of %d works are applied: %w", len(done), workCount, errors.Join(ctx.Err(), errors.New("the watch ended")))
}

// restart restarts the agent while all works are applied. It measures the time until the agent has read
// everything.
func (w *worksBench) restart(ctx context.Context) (err error) {
	if err := w.rest(ctx, quiet); err != nil {
		return err
	}
	if err := w.agent.Stop(); err != nil {
		return err
	}
	w.results.warm, err = w.timed(ctx, w.allLookedAt)
	return err
}

// allLookedAt returns the time of the agent's last reconcile. A work may need several, so it waits until there
// are no more.
func (w *worksBench) allLookedAt(ctx context.Context) (last time.Time, err error) {
	const noMore = 3 * time.Second
	rounds := 0.0
	err = w.until(ctx, "the agent to have looked at every work", func(ctx context.Context) (bool, error) {
		n, err := metric(ctx, w.agent.Admin, "hawser_agent_reconciles_total", `result="done"`)
		if err != nil {
			return false, err
		}
		if n != rounds {
			rounds, last = n, time.Now()
		}
		synced, err := metric(ctx, w.agent.Admin, "hawser_agent_in_sync")
		return rounds >= workCount && synced == 1 && time.Since(last) > noMore, err
	})
	return last, err
}

// start is the cost of one start of the agent.
type start struct {
	took     time.Duration
	writing  time.Duration // from the first write to the last one
	requests int
}

// timed starts the agent and measures until the time that done returns.
func (w *worksBench) timed(ctx context.Context, done func(context.Context) (time.Time, error)) (s start, err error) {
	if _, _, err := w.audit.take(); err != nil {
		return s, err
	}
	began := time.Now()
	if err := w.agent.Start(ctx); err != nil {
		return s, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	end, err := done(ctx)
	if err != nil {
		return s, err
	}
	s.took = end.Sub(began)
	made, writing, err := w.audit.take()
	s.writing, s.requests = writing, made.total()
	w.printRequests(fmt.Sprintf("the start took %v, its writes %v", s.took.Round(10*time.Millisecond), writing.Round(10*time.Millisecond)), made)
	return s, err
}

// printRequests prints the requests by kind.
func (w *worksBench) printRequests(when string, made requests) {
	w.printf("%s: %d requests", when, made.total())
	for _, what := range slices.Sorted(maps.Keys(made)) {
		w.printf("  %5d %s", made[what], what)
	}
}

// changes changes objects and statuses as another client.
func (w *worksBench) changes(ctx context.Context) error {
	r := &w.results
	for range rounds {
		var repaired, reported []time.Duration
		for range changeSamples {
			d, err := w.repair(ctx, w.next)
			if err != nil {
				return err
			}
			repaired = append(repaired, d)
			if d, err = w.report(ctx, w.next); err != nil {
				return err
			}
			reported = append(reported, d)
			w.next++
		}
		r.repaired50 = append(r.repaired50, milliseconds(percentile(repaired, 50)))
		r.repaired99 = append(r.repaired99, milliseconds(percentile(repaired, 99)))
		r.reported50 = append(r.reported50, milliseconds(percentile(reported, 50)))
		r.reported99 = append(r.reported99, milliseconds(percentile(reported, 99)))
	}
	return nil
}

// repair changes a ConfigMap, and measures the time until the agent has repaired it.
func (w *worksBench) repair(ctx context.Context, i int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	in := w.objects.Resource(configMaps).Namespace(spaceOf(i))
	stream, err := in.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + workOf(i)})
	if err != nil {
		return 0, err
	}
	defer stream.Stop()
	began := time.Now()
	if _, err := in.Patch(ctx, workOf(i), "application/merge-patch+json", []byte(`{"data":{"k":"changed"}}`), metav1.PatchOptions{}); err != nil {
		return 0, err
	}
	changed := false
	for e := range stream.ResultChan() {
		value, err := field(e, "data", "k")
		switch {
		case err != nil:
			return 0, err
		case value == "changed":
			changed = true
		case changed:
			return time.Since(began), nil
		}
	}
	return 0, fmt.Errorf("ConfigMap %s was not repaired: %w", workOf(i), ctx.Err())
}

// report changes the status of a Gauge, and measures the time until the hub has the value.
func (w *worksBench) report(ctx context.Context, i int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	stream, err := w.hub.WorkV1().ManifestWorks(cluster).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + workOf(i)})
	if err != nil {
		return 0, err
	}
	defer stream.Stop()
	want := int64(i + 1)
	began := time.Now()
	if _, err := w.objects.Resource(gauges).Namespace(spaceOf(i)).Patch(ctx, workOf(i), "application/merge-patch+json",
		fmt.Appendf(nil, `{"status":{"value":%d}}`, want), metav1.PatchOptions{}, "status"); err != nil {
		return 0, err
	}
	for e := range stream.ResultChan() {
		work, ok := e.Object.(*workv1.ManifestWork)
		if !ok {
			return 0, fmt.Errorf("watch: %v", e.Object)
		}
		for _, m := range work.Status.ResourceStatus.Manifests {
			for _, v := range m.StatusFeedbacks.Values {
				if v.Name == "value" && v.Value.Integer != nil && *v.Value.Integer == want {
					return time.Since(began), nil
				}
			}
		}
	}
	return 0, fmt.Errorf("the status of Gauge %s did not reach the hub: %w", workOf(i), ctx.Err())
}

// field reads a text of an object in an event.
func field(e watch.Event, path ...string) (string, error) {
	o, ok := e.Object.(interface{ UnstructuredContent() map[string]any })
	if !ok || e.Type == watch.Error {
		return "", fmt.Errorf("watch: %v", e.Object)
	}
	var at any = o.UnstructuredContent()
	for _, name := range path {
		m, _ := at.(map[string]any)
		at = m[name]
	}
	s, _ := at.(string)
	return s, nil
}

func (w *worksBench) rest(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// atRest counts the agent's requests to its kube-apiserver while nothing happens.
func (w *worksBench) atRest(ctx context.Context) error {
	if err := w.rest(ctx, quiet); err != nil {
		return err
	}
	if _, _, err := w.audit.take(); err != nil {
		return err
	}
	w.printf("counting requests for %s", restTime)
	if err := w.rest(ctx, restTime); err != nil {
		return err
	}
	made, _, err := w.audit.take()
	if err != nil {
		return err
	}
	w.printRequests("at rest", made)
	w.results.restRequests = float64(made.total()) / restTime.Minutes()
	bytes, err := vmRSS(w.agent.PID())
	w.results.worksMemory = float64(bytes) / (1 << 20)
	return err
}

// metric returns the sum of a metric's series that have all of the labels, each
// given as name="value".
func metric(ctx context.Context, admin, name string, labels ...string) (float64, error) {
	b, err := get(ctx, "http://"+admin+"/metrics")
	if err != nil {
		return 0, err
	}
	return sumOf(string(b), name, labels...)
}

// sumOf returns the sum of matching series in the text of /metrics. A missing metric is 0.
func sumOf(text, name string, labels ...string) (sum float64, err error) {
	for line := range strings.Lines(text) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if series != name && !strings.HasPrefix(series, name+"{") || slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(series, l) }) {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("metric %s: %w", name, err)
		}
		sum += v
	}
	return sum, nil
}
