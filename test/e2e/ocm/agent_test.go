package ocm

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/childproc"
)

// TestOurAgent: the Hawser agent with OCM's own gRPC server and controllers. It joins by a token as a
// klusterlet does, and gets works.
func TestOurAgent(t *testing.T) {
	r := newRig(t)
	r.renewals()
	addr := r.grpcServer()
	began := time.Now()
	k := &klusterlet{rig: r, name: "cluster1", bootstrap: filepath.Join(r.dir, "cluster1", "bootstrap"), home: filepath.Join(r.dir, "cluster1")}
	k.pointAt("hub", addr, r.token())
	r.kubectl(r.spoke, "", "apply", "-k", filepath.Join(root, "deploy", "namespace"))
	r.supervise(childproc.Spec{Name: "agent", Path: filepath.Join(root, "bin", "hawser-agent"), LogFile: filepath.Join(r.dir, "agent.log"), Args: []string{
		"--spoke-cluster-name=" + k.name, "--spoke-kubeconfig=" + r.spoke.KubeconfigPath, "--namespace=hawser", "--admin-listen=",
		"--grpc-bootstrap-config=" + filepath.Join(k.bootstrap, "config.yaml"), "--hub-kubeconfig-secret=hawser-agent-hub",
		"--state-dir=" + filepath.Join(r.dir, "agent"), "--hub-identity=hub", "--disable-leader-election",
	}})
	k.sendsRequests()
	k.accept()
	k.hasCondition(clusterv1.ManagedClusterConditionHubAccepted, metav1.ConditionTrue)
	k.hasCondition(clusterv1.ManagedClusterConditionJoined, metav1.ConditionTrue)
	k.hasCondition(clusterv1.ManagedClusterConditionAvailable, metav1.ConditionTrue)
	k.delivers("first", "1")
	t.Logf("joined and delivered after %s", time.Since(began).Round(time.Second))
	before := k.certificate(t.Context())
	k.eventually(func(ctx context.Context) error {
		if k.certificate(ctx) == before {
			return fmt.Errorf("the certificate is the same")
		}
		return nil
	})
	k.delivers("first", "2")
	t.Logf("renewed after %s", time.Since(began).Round(time.Second))
}

// certificate returns the certificate in our agent's Secret.
func (k *klusterlet) certificate(ctx context.Context) string {
	s, err := k.spoke.kube.CoreV1().Secrets("hawser").Get(ctx, "hawser-agent-hub", metav1.GetOptions{})
	if err != nil {
		k.Error(err)
		return ""
	}
	return string(s.Data["tls.crt"])
}
