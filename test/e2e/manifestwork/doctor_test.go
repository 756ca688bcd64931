package manifestwork

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hawser-io/hawser/internal/local/fleet"
)

// TestDoctor: the doctors of the running programs, with their flags and the rights of deploy/, run to the end.
// They end no subscription.
func TestDoctor(t *testing.T) {
	t.Parallel()
	f := shared
	for program, name := range map[string]string{"hawser-agent": fleet.AgentOf(cluster), "hawser-hub-source": fleet.HubSource} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(f.Root, "bin", program), append([]string{"doctor", "--timeout=1m"}, f.Program(name).Args()...)...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(filepath.Dir(f.LogDir()), name, "kubeconfig"))
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "\nok    rights         all ") {
			t.Errorf("%s: %v\n%s", program, err, out)
		}
	}
}
