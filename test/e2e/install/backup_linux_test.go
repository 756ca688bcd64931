package install

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/hawser-io/hawser/internal/testkit/shellblocks"
)

// TestBackup_CommandsOfTheDocumentation backs up and restores the broker of a cluster with the commands of
// docs/operations/backup.md. The CronJobs run from the images. After the restore the state of the backup is
// back.
func TestBackup_CommandsOfTheDocumentation(t *testing.T) {
	if os.Getenv(apart) == "" {
		inANetworkOfItsOwn(t)
		return
	}
	if err := bringUp(); err != nil {
		t.Fatal(err)
	}
	w := newWhere(t, 0, "hub")
	api := w.api("hub")
	k := &kubelet{
		t: t, kube: kubernetes.NewForConfigOrDie(api), api: api, images: packImages(t), ip: addresses(),
		hosts: "127.0.0.1 localhost\n" + subnet + "1 hawser-broker.hawser.svc broker.example.com\n",
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { k.run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	w.run(w.hawser, hubArgs...)
	asOperator := func(args ...string) string {
		access := filepath.Join(w.dir, "hawser-access")
		return strings.Join(w.run(w.hawser, append(args, "--broker", subnet+"1:8090", "--server-name", "broker.example.com",
			"--ca", filepath.Join(access, "ca.crt"), "--cert", filepath.Join(access, "tls.crt"), "--key", filepath.Join(access, "tls.key"))...), "\n")
	}
	asOperator("deny", "agent/lost")
	w.page(0)
	asOperator("allow", "agent/lost")
	if output := asOperator("get", "denials"); strings.Contains(output, "agent/lost") {
		t.Fatalf("before the restore: %s", output)
	}
	w.page(1)
	if message := asOperator("get", "denials"); !strings.Contains(message, "agent/lost") {
		t.Errorf("after the restore: %s", message)
	}
}

// page runs one of the blocks of docs/operations/backup.md, in the directory of w.
func (w where) page(number int) {
	w.Helper()
	repository, err := filepath.Abs(root)
	if err != nil {
		w.Fatal(err)
	}
	all, err := shellblocks.Find(repository)
	if err != nil {
		w.Fatal(err)
	}
	blocks := shellblocks.Of(shellblocks.Install, all)
	if len(blocks) != 2 || slices.ContainsFunc(blocks, func(b shellblocks.Block) bool { return b.File != "docs/operations/backup.md" }) {
		w.Fatalf("the blocks marked \"sh test install\" are %v, want two in docs/operations/backup.md", blocks)
	}
	ctx, cancel := context.WithTimeout(w.Context(), 5*time.Minute)
	defer cancel()
	r := shellblocks.Runner{Dir: w.dir, Path: []string{filepath.Dir(w.kubectl)}, Env: w.env[len(w.env)-1:], Replace: []string{"deploy/broker-backup", filepath.Join(repository, "deploy", "broker-backup")}}
	if out, err := r.Run(ctx, blocks[number]); err != nil {
		w.Fatalf("%s: %v", out, err)
	}
}
