package troubleshooting

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/pki"
)

func TestOperatorCertificateExpired(t *testing.T) {
	o := sit(t)
	o.issueExpired(pki.Operator, "olga")
	o.trust(o.BrokerAddr(), "", pki.Operator, "olga")
	looks := []look{
		{command: "hawser get clusters " + cluster, output: `expired`},
		{command: "hawser doctor", output: `expired`},
	}
	o.sees("operator certificate expired", looks...)
	o.trust(o.BrokerAddr(), "", pki.Operator, "operator")
	o.isWell(looks...)
}

// issueExpired issues a certificate that expired yesterday.
func (o *operator) issueExpired(role pki.Role, name string) {
	o.t.Helper()
	if _, err := o.PKI().Issue(pki.Request{Role: role, Name: name, Valid: pki.Starting(time.Now().Add(-48*time.Hour), 24*time.Hour)}, true); err != nil {
		o.t.Fatal(err)
	}
}

// comesWith runs the agent of a cluster with the certificate of the cluster certificate, and creates a work for
// it.
func (o *operator) comesWith(name, certificate string) *workv1.ManifestWork {
	o.t.Helper()
	o.carry(name, certificate)
	at := func(file string) string { return filepath.Join(o.home, name, file) }
	o.write(name+"/driver.yaml", "url: "+o.BrokerAddr()+"\ncaFile: "+o.PKI().CACert()+"\nclientCertFile: "+at("tls.crt")+"\nclientKeyFile: "+at("tls.key")+"\n")
	stop := o.RunAgent(o.t, cluster, name, "--hub-identity="+name, "--workload-source-config="+at("driver.yaml"))
	o.t.Cleanup(stop)
	o.forget(name)
	w := web(o.t, "x")
	w.Namespace = name
	return o.Create(o.t, w)
}

// carry copies the certificate of a cluster to the files of an agent.
func (o *operator) carry(name, certificate string) {
	o.t.Helper()
	for file, from := range map[string]string{"tls.key": o.PKI().Key(pki.Agent, certificate), "tls.crt": o.PKI().Cert(pki.Agent, certificate)} {
		b, err := os.ReadFile(from)
		if err != nil {
			o.t.Fatal(err)
		}
		o.write(filepath.Join(name, file), string(b))
	}
}
