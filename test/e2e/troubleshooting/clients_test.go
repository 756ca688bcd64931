package troubleshooting

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/internal/testkit/smalldisk"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// down kills a program. up starts it again, also at the end of the test.
func (o *operator) down(program string) (up func()) {
	o.t.Helper()
	o.Program(program).Kill()
	up = func() {
		o.t.Helper()
		if err := o.Program(program).Start(context.WithoutCancel(o.t.Context())); err != nil {
			o.t.Error(err)
		}
	}
	o.t.Cleanup(up)
	return up
}

func web(t *testing.T, value string) *workv1.ManifestWork {
	t.Helper()
	return harness.NewWork(t, cluster, "web", harness.ConfigMapYAML("default", "web", value))
}

func brokerDown(t *testing.T) {
	o := sit(t)
	up := o.down(fleet.Broker)
	w := web(t, "x")
	w.Name = "new"
	o.Create(t, w)
	looks := []look{
		{command: theWork("new", cluster), output: `new +1 `},
		{command: "kubectl events --for lease/hawser-hub-source -n hawser --types=Warning", output: `no program listens|refused`, next: `Start the broker`, past: true},
		{command: "hawser doctor", output: `listens`, next: `hint: .*check`},
	}
	o.sees("broker down", looks...)
	up()
	o.isWell(looks...)
}

func hubSourceDown(t *testing.T) {
	o := sit(t)
	o.write("web.yaml", workYAML(10))
	o.passes("hawser get clusters "+cluster, cluster+" +InSync") // the agent has acknowledged the earlier events
	up := o.down(fleet.HubSource)
	looks := []look{
		{command: "kubectl apply -f web.yaml", output: `failed calling webhook.*hawser-hub-source`}, // the text of the kube-apiserver
		{command: `kubectl get validatingwebhookconfigurations -o custom-columns=NAME:.metadata.name,DESCRIPTION:.metadata.annotations.kubernetes\.io/description`,
			output: `hawser-hub-source +hub-source decides .* While it does not answer`, next: `kubectl get pods --all-namespaces --selector app\.kubernetes\.io/name=hawser-hub-source`, past: true},
		{command: "hawser get clusters " + cluster, output: `Warning: the hub-source of source hub is not connected: changes of its 0 works reach no cluster`, next: `Run kubectl -n hawser get pods`},
	}
	o.sees("hub-source down", looks...)
	up()
	o.isWell(looks...)
	o.Remove(t, cluster, "web")
}

// TestDeletionOnADeadCluster: a cluster with deleted works is gone permanently.
func TestDeletionOnADeadCluster(t *testing.T) {
	o := sit(t)
	const dead = "paris"
	o.JoinAs(t, dead)
	o.forget(dead)
	stop := o.RunAgent(t, cluster, dead, "--hub-identity="+dead)
	w := web(t, "x")
	w.Namespace = dead
	o.Deliver(t, w)
	stop()
	o.DeleteWork(t, dead, "web")
	looks := []look{
		{command: theWork("web", dead), output: `web +True`},
		{command: "kubectl events --for manifestwork/web -n " + dead, output: "DeletionWaits", past: true},
		{command: "hawser get clusters " + dead, output: dead + ` .*Disconnected`, past: true},
		{command: "hawser get works --state Deleting", output: dead + ` +web`},
	}
	o.sees("deletion on a dead cluster", looks...)
	if out, err := o.types(t.Context(), "hawser force-delete work "+dead+" web"); err != nil {
		t.Fatal(err, out)
	}
	o.isWell(looks...)
}

// diskNearlyFull: the broker has a small disk, and another file fills it.
func diskNearlyFull(t *testing.T) {
	o := sit(t)
	disk := o.onSmallDisk()
	filler := filepath.Join(disk, "filler")
	fill(t, filler)
	w := web(t, "x")
	w.Name = "new"
	o.Create(t, w)
	looks := []look{
		{command: theWork("new", cluster), output: `new +False +1 `},
		{command: warnings("new", cluster), output: `BrokerFull .*the disk of the broker is full or nearly full`, next: `Make room on its volume`, past: true},
		{command: "hawser get clusters " + cluster, output: `Warning: the broker accepts no specs and statuses: store is low on disk space`, next: `enlarge its volume`},
	}
	o.sees("disk nearly full", looks...)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	o.isWell(looks...)
}

// onSmallDisk moves the broker's data to a file system of 256 MiB, until the test ends. It returns the path of
// that file system for this process.
func (o *operator) onSmallDisk() string {
	t, broker := o.t, o.Program(fleet.Broker)
	t.Helper()
	disk := smalldisk.New(t).Path("")
	large, small, args := o.Volume(fleet.Broker, "data"), filepath.Join(disk, "data"), broker.Args()
	o.moveStore(large, small, append(slices.Clone(args), "--data-dir="+small))
	t.Cleanup(func() {
		if err := os.RemoveAll(large); err != nil {
			t.Error(err)
		}
		o.moveStore(small, large, args)
	})
	return disk
}

// moveStore moves the store to another directory, and restarts the broker there.
func (o *operator) moveStore(from, to string, args []string) {
	o.t.Helper()
	broker, ctx := o.Program(fleet.Broker), context.WithoutCancel(o.t.Context())
	err := broker.Stop()
	if err == nil {
		err = os.RemoveAll(filepath.Join(from, "RESERVE")) // its size depends on the disk
	}
	if err == nil {
		err = os.CopyFS(to, os.DirFS(from))
	}
	broker.SetArgs(args)
	if err := errors.Join(err, broker.Start(ctx)); err != nil {
		o.t.Fatal(err)
	}
}

// fill leaves 20 MiB of free space on a file system, less than the broker requires.
func fill(t *testing.T, name string) {
	t.Helper()
	f, err := os.Create(filepath.Clean(name))
	if err != nil {
		t.Fatal(err)
	}
	var s syscall.Statfs_t
	if err = syscall.Fstatfs(int(f.Fd()), &s); err == nil {
		err = syscall.Fallocate(int(f.Fd()), 0, 0, int64(s.Bavail)*s.Bsize-20<<20)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}
