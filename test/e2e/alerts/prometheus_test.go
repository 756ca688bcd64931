package alerts

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/local/thirdparty"
	"github.com/hawser-io/hawser/test/alerts"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// faster divides the waiting time ("for") of the rules: two minutes become two seconds. Nothing else in the
// rules is changed.
const faster = 60

// within is the longest time until an alert fires on a busy machine. Clients back off for up to half a minute,
// and Prometheus has to scrape the change.
const within = 3 * time.Minute

// addr returns an unused address in the network of the fleet.
func addr(t *testing.T, last int, port string) string {
	t.Helper()
	host, _, err := net.SplitHostPort(shared.BrokerAddr())
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort(fmt.Sprintf("%s.%d", host[:strings.LastIndex(host, ".")], last), port)
}

// prometheus is a Prometheus server that runs until its test ends.
type prometheus struct {
	t    *testing.T
	addr string
}

type (
	scrape struct {
		Job     string   `json:"job_name"`
		Targets []static `json:"static_configs"`
	}
	static struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	}
)

// startPrometheus starts Prometheus with the rules of all programs. targets are the addresses by job; the labels
// are those of the PodMonitors.
func startPrometheus(t *testing.T, targets map[string]string) *prometheus {
	t.Helper()
	programs, err := thirdparty.FetchPackage(t.Context(), shared.Root, "prometheus", t.Output())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := map[string]any{"global": map[string]string{"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"}}
	var files []string
	for _, program := range alerts.Programs {
		rules, err := alerts.Load(shared.Root, program)
		if err == nil {
			rules, err = rules.ShortenFor(faster)
		}
		file := filepath.Join(dir, program+".yaml")
		if err == nil {
			err = rules.Write(file)
		}
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	var scrapes []scrape
	for _, job := range slices.Sorted(maps.Keys(targets)) {
		scrapes = append(scrapes, scrape{Job: job, Targets: []static{{Targets: []string{targets[job]}, Labels: map[string]string{"namespace": "hawser"}}}})
	}
	config["rule_files"], config["scrape_configs"] = files, scrapes
	text, err := yaml.Marshal(config)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "prometheus.yaml"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	p := &prometheus{t: t, addr: addr(t, 200, "9090")}
	process, err := childproc.Start(t.Context(), childproc.Spec{
		Name: "prometheus", Path: filepath.Join(programs, "prometheus"), LogFile: filepath.Join(shared.LogDir(), "prometheus.log"),
		Args: []string{
			"--config.file=" + filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + p.addr,
		},
		Ready: func(ctx context.Context) error { return p.get(ctx, "/-/ready", nil) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := process.Stop(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// get sends a request and decodes the answer into into. A nil into drops the answer.
func (p *prometheus) get(ctx context.Context, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.addr+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // the body was read
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, resp.Status)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(into)
}

// firing returns the alerts that fire, by name.
func (p *prometheus) firing(ctx context.Context) (map[string]map[string]string, error) {
	var answer struct {
		Data struct {
			Alerts []struct {
				State               string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := p.get(ctx, "/api/v1/alerts", &answer); err != nil {
		return nil, err
	}
	all := map[string]map[string]string{}
	for _, a := range answer.Data.Alerts {
		if a.State != "firing" {
			continue
		}
		all[a.Labels["alertname"]] = a.Labels
		if d := a.Annotations["description"]; strings.Contains(d, "<no value>") || strings.Contains(d, "<error") || strings.Contains(d, "  ") {
			p.t.Errorf("alert %s has the description %q", a.Labels["alertname"], d)
		}
	}
	return all, nil
}

// fire waits until alerts fire.
func (p *prometheus) fire(names ...string) {
	p.t.Helper()
	harness.EventuallyWithin(p.t, within, func(ctx context.Context) error {
		all, err := p.firing(ctx)
		if err != nil {
			return err
		}
		for _, name := range names {
			if all[name] == nil {
				return fmt.Errorf("%s does not fire, but %v", name, slices.Sorted(maps.Keys(all)))
			}
		}
		return nil
	})
}

// clear waits until alerts do not fire.
func (p *prometheus) clear(names ...string) {
	p.t.Helper()
	harness.EventuallyWithin(p.t, within, func(ctx context.Context) error {
		all, err := p.firing(ctx)
		if err != nil {
			return err
		}
		for _, name := range names {
			if all[name] != nil {
				return fmt.Errorf("%s fires: %v", name, all[name])
			}
		}
		return nil
	})
}
