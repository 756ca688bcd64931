package sim

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	addonversioned "open-cluster-management.io/api/client/addon/clientset/versioned"
	clusterversioned "open-cluster-management.io/api/client/cluster/clientset/versioned"

	"github.com/hawser-io/hawser/internal/hubsource/clustercontroller"
	"github.com/hawser-io/hawser/internal/hubsource/registration"
	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/internal/pki"
	programs "github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/internal/testkit/fakehub"
)

// joinHub is the hub's kube-apiserver with its faults.
type joinHub struct {
	j    *join
	api  *fakehub.Server
	ca   *pki.Authority
	cert string // files of the CA that signs clusters
	key  string
	old  *fakehub.Backup

	// Guarded by the world's lock.
	down   bool
	slow   time.Duration // the longest that an answer takes
	losing int           // answers to writes that get lost
}

// hubDelay is the answer time of a healthy hub.
const hubDelay = 20 * time.Millisecond

func newJoinHub(j *join) *joinHub {
	h := &joinHub{j: j, api: fakehub.New(), slow: hubDelay}
	h.certify()
	h.api.Without("apps/v1/deployments")
	h.api.Put("namespaces", fakehub.Object{"metadata": fakehub.Object{"name": "open-cluster-management-hub"}})
	h.api.PutRegistrar(ocm.Registrar)
	h.api.Fault = h.fault
	h.api.Audit = j.oracle.audit
	return h
}

// certify makes the CA that signs clusters.
func (h *joinHub) certify() {
	var err error
	h.ca, err = pki.NewAuthority("hub", pki.Starting(time.Now(), 1000*time.Hour))
	must(err)
	h.cert = h.j.write("ca.crt", h.ca.CertificatePEM())
	h.key = h.j.write("ca.key", h.ca.KeyPEM())
}

// fault decides about a request of hub-source, after a delay.
func (h *joinHub) fault(r *fakehub.Request) fakehub.Fault {
	h.j.mu.Lock()
	down, slow := h.down, h.slow
	f := fakehub.Serves
	switch writes := r.Verb != "get" && r.Verb != "list" && r.Verb != "watch"; {
	case down && h.j.draw.IntN(2) == 0:
		f = fakehub.Refuses
	case down:
		f = fakehub.Breaks
	case writes && h.losing > 0:
		h.losing--
		f = fakehub.LosesAnswer
	}
	d := time.Duration(h.j.draw.Int64N(int64(slow)))
	h.j.mu.Unlock()
	<-time.After(d)
	return f
}

func (h *joinHub) heal() {
	h.j.mu.Lock()
	defer h.j.mu.Unlock()
	h.down, h.slow, h.losing = false, hubDelay, 0
}

// accepts returns spec.hubAcceptsClient of a ManagedCluster, and whether it exists.
func (h *joinHub) accepts(cluster string) (accepted, exists bool) {
	o := h.api.Get("managedclusters", "", cluster)
	spec, _ := o["spec"].(fakehub.Object)
	accepted, _ = spec["hubAcceptsClient"].(bool)
	return accepted, o != nil
}

// joinSourceID is the id of the hub source.
const joinSourceID = "hub1"

// joinSource is the registration part of hub-source.
type joinSource struct {
	j       *join
	program *program
	works   *joinWorks
	starts  int
}

func (s *joinSource) start() {
	j := s.j
	s.starts++
	config := j.hub.api.Config("hub-source")
	hub, err := registration.NewHub(config)
	if err != nil {
		panic(err)
	}
	log := slog.New(slog.DiscardHandler)
	registry := prometheus.NewRegistry()
	health := &telemetry.Health{}
	server := registration.New(registration.Config{
		ID: joinSourceID, Hub: hub, Dialer: j.net.sourceDialer(), Registerer: registry, Health: health, Log: log,
	})
	members := s.registrationControllers(config, server, registry, health, log)
	s.works = newJoinWorks(j)
	s.program = begin(
		programs.Task{Name: "registration", Run: server.Run}, programs.Task{Name: "registration-controllers", Run: members.Run}, programs.Task{Name: "works", Run: s.works.run},
	)
}

func (s *joinSource) registrationControllers(config *rest.Config, server *registration.Server, registry prometheus.Registerer, health *telemetry.Health, log *slog.Logger) *clustercontroller.Controller {
	kube, err := kubernetes.NewForConfig(config)
	must(err)
	clusters, err := clusterversioned.NewForConfig(config)
	must(err)
	addons, err := addonversioned.NewForConfig(config)
	must(err)
	meta, err := metadata.NewForConfig(config)
	must(err)
	c, err := clustercontroller.New(clustercontroller.Config{
		Mode: clustercontroller.On, Signer: clustercontroller.Signer{CertFile: s.j.hub.cert, KeyFile: s.j.hub.key, Duration: certificateLifetime},
		Kube: kube, Clusters: clusters, Addons: addons, Metadata: meta, Registerer: registry, Health: health, Log: log,
		Broker: func() clustercontroller.ConnectionState {
			connected, since := server.Connected()
			return clustercontroller.ConnectionState{Connected: connected, Since: since}
		},
	})
	must(err)
	return c
}

func (s *joinSource) stop() {
	if s.program == nil {
		return
	}
	s.j.ended("hub-source", s.program.end())
	s.program = nil
}

func must(err error) {
	if err != nil {
		panic(fmt.Sprint("the world cannot be made: ", err))
	}
}
