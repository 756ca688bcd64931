// Package network runs an agent in a network that reaches only a proxy: Debian's Squid, with a user name and a
// password.
package network

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/internal/mqttacl"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

const cluster = "cluster1"

// within is the longest time until a client connects, with its waits between attempts.
const within = 3 * harness.ConvergeTimeout

var f *harness.Fleet

func TestMain(m *testing.M) {
	if ways := os.Getenv(envInside); ways != "" {
		os.Exit(runInside(ways))
	}
	os.Exit(harness.Main(m, fleet.Config{Root: "../../..", Clusters: []string{cluster}}, func(started *harness.Fleet) { f = started }, nil))
}

// inner is the address of the proxy inside the namespace.
const inner = "127.0.0.1:3128"

// remotePeer is an agent whose network reaches only the proxy and its kube-apiserver.
type remotePeer struct {
	name    string
	network *isolated
	// file is the driver file with the access to the broker, without the proxy.
	file string
	args []string
}

// runs makes a new name for each run, because works of an earlier run may still be on their way.
var runs atomic.Int64

func newRemotePeer(t *testing.T, name, proxy string, overMQTT bool) *remotePeer {
	t.Helper()
	name = fmt.Sprintf("%s-%d", name, runs.Add(1))
	f.JoinAs(t, name)
	admin, err := f.Clusters[cluster].RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	api, err := url.Parse(admin.Host)
	if err != nil {
		t.Fatal(err)
	}
	a := &remotePeer{name: name, network: isolate(t, map[string]string{inner: proxy, api.Host: api.Host}), file: string(f.ConnectionFile(pki.Agent, name))}
	if overMQTT {
		topics := mqttacl.DefaultLayout(fleet.SourceID).Topics
		a.file = strings.Replace(a.file, "url:", "brokerHost:", 1) + fmt.Sprintf("topics:\n  sourceEvents: %s\n  agentEvents: %s\n  sourceBroadcast: %s\n  agentBroadcast: %s\n",
			topics.SourceEvents, topics.AgentEvents, topics.SourceBroadcast, topics.AgentBroadcast)
		a.args = []string{"--workload-source-driver=mqtt"}
	}
	return a
}

// spec returns the agent with one more line in its driver file.
func (a *remotePeer) spec(t *testing.T, line string) childproc.Spec {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(a.file+line+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return f.AgentSpec(t, cluster, a.name, append(a.args, "--hub-identity="+a.name, "--workload-source-config="+file)...)
}

// doctor runs hawser-agent doctor in the network of the agent.
func (a *remotePeer) doctor(t *testing.T, line string) (string, error) {
	t.Helper()
	s := a.spec(t, line)
	s.Args = append([]string{"doctor"}, s.Args...)
	return a.network.run(t, s)
}

const proxyLine = "proxy: http://" + user + ":" + password + "@" + inner

// updated creates the work, or writes its next version, and waits until it is applied.
func (a *remotePeer) updated(t *testing.T, version int) {
	t.Helper()
	works := f.HubAPI.Work.WorkV1().ManifestWorks(a.name)
	w := harness.NewWork(t, a.name, "w", fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {namespace: default, name: %s}, data: {version: %q}}", a.name, fmt.Sprint(version)))
	if version == 1 {
		f.Create(t, w)
	} else {
		harness.Eventually(t, func(ctx context.Context) error {
			now, err := works.Get(ctx, "w", metav1.GetOptions{})
			if err != nil {
				return err
			}
			now.Spec = w.Spec
			_, err = works.Update(ctx, now, metav1.UpdateOptions{})
			return err
		})
	}
	harness.EventuallyWithin(t, within, func(ctx context.Context) error {
		got, err := f.API[cluster].Kube.CoreV1().ConfigMaps("default").Get(ctx, a.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got.Data["version"] != fmt.Sprint(version) {
			return fmt.Errorf("the cluster has version %s, want %d", got.Data["version"], version)
		}
		now, err := works.Get(ctx, "w", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range now.Status.Conditions {
			if c.Type == "Applied" && c.Status == metav1.ConditionTrue && c.ObservedGeneration == now.Generation {
				return nil
			}
		}
		return fmt.Errorf("not applied: %v", now.Status.Conditions)
	})
}

// ways are the transports. The value is true for MQTT.
var ways = map[string]bool{"grpc": false, "mqtt": true}

// TestProxy_IsTheOnlyWay: in the agent's network, nothing listens at the broker's address. Through the proxy
// works arrive and their statuses come back, over both transports. The doctor, run beside the agent, reports
// faults of the proxy.
func TestProxy_IsTheOnlyWay(t *testing.T) {
	proxy := squid(t, "3128", 60)
	for transport, overMQTT := range ways {
		t.Run(transport, func(t *testing.T) {
			a := newRemotePeer(t, "remote-"+transport, proxy, overMQTT)
			for line, want := range map[string]string{
				"proxy: none":            "tcp: no program listens at " + f.BrokerAddr(),
				"proxy: http://" + inner: "proxy: the proxy http://" + inner + " wants another user name and password",
				strings.Replace(proxyLine, password, "wrong", 1): "proxy: the proxy http://ann:xxxxx@" + inner + " wants another user name and password",
			} {
				if out, err := a.doctor(t, line); err == nil || !strings.Contains(out, want) || strings.Contains(out, "wrong@") {
					t.Errorf("with %s the doctor reports %v:\n%s\nwant %q", line, err, out, want)
				}
			}
			if out, err := a.doctor(t, proxyLine); err != nil || !strings.Contains(out, "http://ann:xxxxx@"+inner+" lets us through") {
				t.Errorf("the doctor reports %v:\n%s", err, out)
			}
			f.Run(t, a.network.inside(t, a.spec(t, proxyLine)))
			a.updated(t, 1)
			a.updated(t, 2)
		})
	}
}

// TestProxy_Refuses: the proxy knows the user and allows no connection to that address.
func TestProxy_Refuses(t *testing.T) {
	a := newRemotePeer(t, "refused", squid(t, "3129", 60), false)
	a.file = strings.Replace(a.file, "url: "+f.BrokerAddr(), "url: 127.0.0.1:8090", 1)
	out, err := a.doctor(t, proxyLine)
	if err == nil || !strings.Contains(out, "refuses a connection to 127.0.0.1:8090: 403 Forbidden") || !strings.Contains(out, "ask the network team to allow CONNECT to 127.0.0.1:8090 through "+inner) {
		t.Errorf("the doctor reports %v:\n%s", err, out)
	}
}

// TestProxy_EndsIdleConnections: a quiet connection stays, because it carries a heartbeat every 10 s and the
// proxy waits longer than that. With a shorter proxy timeout each connection is lost, and no update.
func TestProxy_EndsIdleConnections(t *testing.T) {
	patient, hasty := squid(t, "3128", 25), squid(t, "3129", 3)
	for transport, overMQTT := range ways {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			stays, cut := newRemotePeer(t, "quiet-"+transport, patient, overMQTT), newRemotePeer(t, "cut-"+transport, hasty, overMQTT)
			for _, a := range []*remotePeer{stays, cut} {
				f.Run(t, a.network.inside(t, a.spec(t, proxyLine)))
				a.updated(t, 1)
			}
			connections := stays.network.connections[inner].Load()
			quiet := time.Now()
			for version := 2; version < 5; version++ { // the other agent sends and receives nothing meanwhile
				lost := cut.network.connections[inner].Load()
				harness.EventuallyWithin(t, within, func(context.Context) error {
					if cut.network.connections[inner].Load() == lost {
						return errors.New("the proxy has not ended the connection")
					}
					return nil
				})
				cut.updated(t, version)
			}
			harness.EventuallyWithin(t, 2*harness.ConvergeTimeout, func(context.Context) error {
				if since := time.Since(quiet); since < 40*time.Second {
					return fmt.Errorf("it was quiet for %s only", since)
				}
				return nil
			})
			if now := stays.network.connections[inner].Load(); now != connections {
				t.Errorf("the quiet connection was opened %d times again", now-connections)
			}
			stays.updated(t, 2)
		})
	}
}
