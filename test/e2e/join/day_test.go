package join

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// runningHub runs a hub that clusters join. It returns the broker's address, and the output of hawser install
// hub.
func (w *world) runningHub() (at, output string) {
	w.Helper()
	at = w.address("hub/hawser-broker") + ":8090"
	output = w.hawser(append([]string{"install", "hub", "--context", "hub", "--registration", "--address", at}, images...)...)
	w.run(w.kubectl, "--context", "hub", "delete", "validatingwebhookconfiguration", "hawser-hub-source") // no pod serves the webhook
	w.start("hub", "hawser-broker")
	w.start("hub", "hawser-hub-source", "hawser-broker.hawser.svc:8090", at)
	return at, output
}

// shell runs a command line unchanged.
func (w *world) shell(line string) (out string, err error) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-eu", "-o", "pipefail", "-c", line)
	path := "PATH=" + strings.Join([]string{w.bin, filepath.Dir(w.kubectl), os.Getenv("PATH")}, string(os.PathListSeparator))
	cmd.Env, cmd.Dir = append(append(os.Environ(), path), w.env()...), w.dir
	b, err := cmd.CombinedOutput()
	w.Logf("%s\n%s", line, b)
	return string(b), err
}

// runs is shell for a line that must succeed.
func (w *world) runs(line string) string {
	w.Helper()
	out, err := w.shell(line)
	if err != nil {
		w.Fatalf("%s: %v\n%s", line, err, out)
	}
	return out
}

// commands returns the hawser commands in a text: the rest of each line after two blanks.
func commands(text string) (all []string) {
	for line := range strings.Lines(text) {
		if at := strings.Index(line, "  hawser "); at >= 0 {
			all = append(all, strings.TrimSpace(line[at:]))
		}
	}
	return all
}

// access adds the operator's access to the broker to the arguments of hawser.
func (w *world) access(at string, args ...string) []string {
	return append(args, "--broker", at, "--ca", w.file("ca.crt"), "--cert", w.file("tls.crt"), "--key", w.file("tls.key"))
}

// TestJoin_PrintedLines: hawser install hub and hawser token create print the commands by which a cluster
// joins. These commands run unchanged.
func TestJoin_PrintedLines(t *testing.T) {
	w := newWorld(t, "hub", "cluster1")
	at, output := w.runningHub()
	lines := commands(output)
	if len(lines) != 2 || !strings.Contains(lines[0], "&& hawser join cluster1 ") {
		t.Fatalf("hawser install hub prints the commands %q:\n%s", lines, output)
	}
	w.runs(lines[0])
	w.start("cluster1", "hawser-agent")
	w.runs(lines[1])
	w.eventually("InSync", w.access(at, "get", "clusters", "cluster1")...)

	// The command runs in a directory without the hub's files, and writes to another file name.
	w.dir = t.TempDir()
	output = w.runs("hawser token create --context hub > 'my token'")
	lines = commands(output)
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "hawser join cluster1 ") || !strings.Contains(lines[0], "my token") {
		t.Fatalf("hawser token create prints the commands %q:\n%s", lines, output)
	}
	if out := w.runs(lines[0]); !strings.Contains(out, "secret/hawser-agent-bootstrap changed") {
		t.Error("the cluster does not have the new token")
	}
	w.runs(lines[1])
	// Through a pipe the token is in no file.
	lines = commands(w.runs("hawser token create --context hub | cat"))
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "hawser token create --context hub | hawser join cluster1 ") {
		t.Fatalf("hawser token create prints the commands %q", lines)
	}
	w.runs(lines[0])
}

// TestJoin_InstallClusterReportsHow: a hub that clusters join would reject an installed agent. So hawser
// install cluster changes nothing and prints the commands by which the cluster joins. These commands run
// unchanged.
func TestJoin_InstallClusterReportsHow(t *testing.T) {
	w := newWorld(t, "hub", "cluster1")
	at, _ := w.runningHub()
	const install = "hawser install cluster cluster1 --hub-context hub --context cluster1"
	out, err := w.shell(install)
	if err == nil || strings.Contains(out, "is ready") {
		t.Fatalf("%s ends with %v, and the hub refuses the agent:\n%s", install, err, out)
	}
	if left := w.run(w.kubectl, "--context", "cluster1", "get", "namespace", "hawser", "--ignore-not-found", "-o", "name"); left != "" {
		t.Errorf("a refused installation left %s", left)
	}
	lines := commands(out)
	if len(lines) != 2 {
		t.Fatalf("it prints the commands %q", lines)
	}
	w.runs(lines[0])
	w.start("cluster1", "hawser-agent")
	w.runs(lines[1])
	w.eventually("InSync", w.access(at, "get", "clusters", "cluster1")...)
	if out, err := w.shell(install); err == nil || !strings.Contains(out, "this cluster joined its hub with hawser join") {
		t.Errorf("over a cluster that joined: %v\n%s", err, out)
	}
}

// TestJoin_ClusterNotOnHub: on a hub that clusters join, hawser get clusters distinguishes three cases. These
// are a misspelt namespace, a detached cluster, and a cluster that waits for acceptance. Its advice works. When
// nothing of the detached cluster is left, its row is gone.
func TestJoin_ClusterNotOnHub(t *testing.T) {
	s := requester(t)
	get := s.access(s.at, "get", "clusters")
	s.eventually("accept it with hawser accept cluster1", get...)
	s.hawser("accept", "cluster1", "--context", "hub", "--wait")
	s.run(s.kubectl, "--context", "hub", "create", "namespace", "clsuter1")
	s.applyIn(s.hub, "clsuter1", "lost")
	// Step 1: the policy denies hub-source the finalizer, so the broker has no record of the work. The log gives
	// the reason.
	s.eventuallyTrue("the log of hub-source reports that the namespace is of no cluster", func() (bool, string) {
		log, err := os.ReadFile(filepath.Join(s.dir, "hub-hawser-hub-source", "log"))
		return strings.Contains(string(log), `manifestworks.work.open-cluster-management.io \"lost\" is forbidden`) && strings.Contains(string(log), "Is the namespace misspelt"), fmt.Sprint(err)
	})
	// Step 2: without the policy the row gives the reason.
	s.run(s.kubectl, "--context", "hub", "delete", "validatingadmissionpolicybinding", "hawser-hub-source")
	row := s.rowOf("NotOnHub", "clsuter1", get)
	if strings.Contains(row, "hawser accept") || !strings.Contains(row, "is the namespace of its works misspelt?") {
		t.Errorf("the row of a misspelt namespace is %q", row)
	}
	s.hawser("detach", "cluster1", "--context", "hub")
	row = s.rowOf("NotOnHub", "cluster1", get)
	if strings.Contains(row, "hawser accept") || !strings.Contains(row, "hawser uninstall cluster cluster1") {
		t.Errorf("the row of a detached cluster is %q", row)
	}
	s.agent()
	s.hawser("uninstall", "cluster", "cluster1", "--hub-context", "hub", "--context", "cluster1")
	s.broker() // a new broker has no list of rejected agents
	s.broker = s.start("hub", "hawser-broker")
	s.eventuallyTrue("the row of the detached cluster is gone", func() (bool, string) {
		out, err := s.try(get...)
		return err == nil && strings.Contains(out, "clsuter1 ") && strings.Contains(out, "NotOnHub") && !strings.Contains("\n"+out, "\ncluster1 "), out
	})
	if out := s.hawser(append(get, "cluster1")...); !strings.Contains(out, "NotOnHub") {
		t.Errorf("the cluster is not listed by its name: %s", out)
	}
}

// rowOf waits until the table has a row of a cluster in a state, and returns it.
func (s *stay) rowOf(state, cluster string, get []string) (row string) {
	s.Helper()
	s.eventuallyTrue(cluster+" is "+state, func() (bool, string) {
		out, err := s.try(get...)
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, cluster+" ") && strings.Contains(line, state) {
				row = line
			}
		}
		return err == nil && row != "", out
	})
	return row
}

// try runs hawser, and returns its output and error.
func (s *stay) try(args ...string) (out string, err error) {
	cmd := exec.CommandContext(s.Context(), filepath.Join(s.bin, "hawser"), args...)
	cmd.Env, cmd.Dir = append(os.Environ(), s.env()...), s.dir
	b, err := cmd.CombinedOutput()
	return string(b), err
}
