package install

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hawser-io/hawser/test/e2e/harness"
)

// terminal runs commands of an operator, with one cluster as the current context.
type terminal struct {
	where
	kubeconfig string
}

// terminals returns one terminal for each control plane.
func (w where) terminals() (all []terminal) {
	files, _ := strings.CutPrefix(w.env[len(w.env)-1], "KUBECONFIG=")
	for _, file := range filepath.SplitList(files) {
		all = append(all, terminal{w, file})
	}
	return all
}

// typed runs a command in the root of the repository, as a shell does.
func (m terminal) typed(command string) (string, error) {
	repository, err := filepath.Abs(root)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(m.Context(), "sh", "-ec", command)
	cmd.Dir = repository
	cmd.Env = append(os.Environ(), "KUBECONFIG="+m.kubeconfig, "PATH="+filepath.Dir(m.kubectl)+":"+filepath.Dir(m.hawser)+":"+os.Getenv("PATH"),
		"pki="+m.dir, "KUBE_EDITOR=sed -i s/nginx:1.29/nginx:1.30/")
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = errors.Join(errors.New(command+"\n"+string(out)), err)
	}
	return string(out), err
}

// types runs commands in order until each one succeeds. Its output must contain all words after " =>".
func (m terminal) types(commands ...string) {
	m.Helper()
	for _, c := range commands {
		command, want, _ := strings.Cut(c, " => ")
		harness.Eventually(m.T, func(context.Context) error {
			output, err := m.typed(command)
			for _, word := range strings.Fields(want) {
				if !strings.Contains(output, word) {
					err = errors.Join(err, errors.New(command+" does not print "+word+":\n"+output))
				}
			}
			return err
		})
	}
}

// does runs commands in order, each once.
func (m terminal) does(commands ...string) {
	m.Helper()
	for _, c := range commands {
		if _, err := m.typed(c); err != nil {
			m.Fatal(err)
		}
	}
}

// TestAdvice_OfKubectl: messages, alerts, notes of charts and pages advise commands of kubectl. Each command
// must have its effect, on a hub and a cluster of hawser install, and on those that are set up by hand.
// TestAdvice_OfKubectlIsExecuted in internal/cli finds the commands, and looks them up here.
func TestAdvice_OfKubectl(t *testing.T) {
	w := newWhere(t, 1, "hub", "cluster1", "byhand")
	all := w.terminals()
	hub, cluster, byHand := all[0], all[1], all[2]
	w.run(w.hawser, hubArgs...)
	w.run(w.hawser, "install", "cluster", "cluster1", "--hub-context", "hub", "--context", "cluster1")
	t.Run("by hand", func(t *testing.T) { byHand.T = t; setUpByHand(byHand) })
	t.Run("the programs", func(t *testing.T) { hub.T, cluster.T = t, t; programs(hub, cluster) })
	t.Run("works", func(t *testing.T) { hub.T, cluster.T = t, t; works(hub, cluster) })
	t.Run("joining", func(t *testing.T) { hub.T = t; joining(hub) })
}

// setUpByHand follows deploy/by-hand.md.
func setUpByHand(m terminal) {
	m.does(
		"hawser pki init --dir $pki",
		"hawser pki issue --dir $pki --role source --name hub",
		"hawser pki issue --dir $pki --role agent --name cluster1",
		"kubectl apply --server-side -f deploy/crds/",
		"kubectl create namespace hawser",
		"kubectl -n hawser create secret generic hawser-hub-source-tls --from-file=ca.crt=$pki/ca.crt --from-file=tls.crt=$pki/source-hub.crt --from-file=tls.key=$pki/source-hub.key",
		"kubectl -n hawser create secret generic hawser-agent --from-literal=cluster-name=cluster1 --from-literal=hub-identity=hub1"+
			" --from-file=config.yaml=deploy/agent/config.yaml --from-file=ca.crt=$pki/ca.crt --from-file=tls.crt=$pki/agent-cluster1.crt --from-file=tls.key=$pki/agent-cluster1.key",
		"kubectl apply --server-side -k deploy/broker",
		"kubectl apply --server-side -k deploy/hub-source",
		"kubectl apply --server-side -k deploy/agent",
		"kubectl apply -k deploy/namespace",
		`kubectl patch validatingwebhookconfiguration hawser-hub-source --type=json -p "[{\"op\":\"add\",\"path\":\"/webhooks/0/clientConfig/caBundle\",\"value\":\"$(base64 < $pki/ca.crt | tr -d '\n')\"}]"`,
	)
	m.types("kubectl get validatingwebhookconfiguration hawser-hub-source -o 'jsonpath={.webhooks[*].clientConfig.caBundle}' => LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t")
}

// programs runs the commands about installed programs.
func programs(hub, cluster terminal) {
	hub.types(
		"kubectl config get-contexts => hub",
		"kubectl -n hawser get pods => hawser-broker- hawser-hub-source- Running",
		"kubectl describe pods -n hawser -l app.kubernetes.io/name=hawser-broker => hawser-broker",
		"kubectl -n hawser get leases", // of programs that run none is left out, and here none runs
		"kubectl -n hawser get events --field-selector type=Warning",
		"kubectl -n hawser get service hawser-broker => 8090",
		"kubectl -n hawser rollout status deployment/hawser-broker --timeout=2m => successfully",
		"kubectl get events -n hawser",
		`kubectl get validatingwebhookconfigurations -o 'custom-columns=NAME:.metadata.name,DESCRIPTION:.metadata.annotations.kubernetes\.io/description' => app.kubernetes.io/name=hawser-hub-source.`,
		"kubectl get pods --all-namespaces --selector app.kubernetes.io/name=hawser-hub-source => hawser-hub-source- Running",
	)
	cluster.types(
		"kubectl -n hawser rollout status deployment/hawser-agent --timeout=2m => successfully",
		"kubectl -n hawser describe pod -l app.kubernetes.io/name=hawser-agent => hawser-agent Ready",
		"kubectl get deployments,appliedmanifestworks -A => hawser-agent",
	)
	cluster.does(
		"kubectl -n hawser edit deployment hawser-agent",
		"POD=$(kubectl -n hawser get pods -l app.kubernetes.io/name=hawser-agent -o name); kubectl -n hawser debug $POD --image=busybox --profile=restricted --target=agent -- kill -USR1 1",
	)
	cluster.types("kubectl get pods -n hawser -o yaml => ephemeralContainers: -USR1 targetContainerName:")
	hub.does("kubectl -n hawser rollout restart deployment/hawser-broker", "kubectl -n hawser scale deployment hawser-broker --replicas=0", "kubectl apply --server-side -k deploy/postgres-migration")
	hub.types("kubectl -n hawser wait --for=condition=Complete job/hawser-postgres-migration --timeout=1h")
	file := filepath.Join(cluster.dir, "applied.yaml")
	if err := os.WriteFile(file, []byte("{apiVersion: work.open-cluster-management.io/v1, kind: AppliedManifestWork, metadata: {name: left}, spec: {hubHash: a, manifestWorkName: left}}"), 0o600); err != nil {
		cluster.Fatal(err)
	}
	cluster.does("kubectl apply --server-side -f $pki/applied.yaml")
	cluster.types("kubectl get appliedmanifestworks => left")
	cluster.does("kubectl delete appliedmanifestwork left")
}

// works runs the commands about works, and deletes the work.
func works(hub, _ terminal) {
	hub.does("kubectl delete validatingwebhookconfiguration hawser-hub-source") // no pod serves the webhook
	hub.types("kubectl get namespace cluster1 || kubectl create namespace cluster1")
	hub.does("kubectl apply -f docs/examples/first-work.yaml")
	hub.types(
		"kubectl get manifestworks -A => first-work GENERATION",
		"kubectl get manifestworks -A -o wide => first-work",
		"kubectl get manifestworks -n cluster1 => first-work",
		"kubectl -n cluster1 get manifestwork first-work -o yaml => nginx",
		"kubectl describe manifestwork first-work -n cluster1 => first-work",
		"kubectl events --for manifestwork/first-work -n cluster1 --types=Warning",
		"kubectl explain manifestwork.spec.deleteOption => propagationPolicy",
	)
	hub.does("kubectl edit manifestwork first-work -n cluster1")
	hub.types("kubectl get manifestwork first-work -n cluster1 -o yaml => nginx:1.30")
	hub.does(
		"kubectl label namespace cluster1 open-cluster-management.io/cluster-name=cluster1",
		"kubectl create clusterrolebinding hawser-hub-source-acceptance --clusterrole=hawser-hub-source-acceptance --serviceaccount=hawser:hawser-hub-source",
		`kubectl patch manifestwork first-work -n cluster1 --type=merge -p '{"metadata":{"finalizers":null}}'`,
		"kubectl delete manifestwork first-work -n cluster1",
	)
}

// joining runs the commands about clusters that request to join.
func joining(hub terminal) {
	definition := definitions(hub.T)
	hub.does(
		"kubectl apply --server-side -f deploy/crds/managedclusters.yaml -f deploy/crds/managedclusteraddons.yaml",
		"kubectl apply --server-side -f "+definition+" -f "+strings.Replace(definition, "_certificates.", "_certificaterequests.", 1),
		"kubectl -n hawser create serviceaccount joins",
		"kubectl -n hawser delete serviceaccount joins",
		"kubectl get namespace open-cluster-management-hub || kubectl create namespace open-cluster-management-hub",
		"kubectl create clusterrole hawser-hub-source-membership --verb=get --resource=leases",
		"kubectl create clusterrolebinding hawser-hub-source-membership --clusterrole=hawser-hub-source-membership --serviceaccount=hawser:hawser-hub-source",
		"kubectl -n open-cluster-management-hub create role hawser-hub-source-membership --verb=get --resource=leases",
		"kubectl -n open-cluster-management-hub create rolebinding hawser-hub-source-membership --role=hawser-hub-source-membership --serviceaccount=hawser:hawser-hub-source",
		"kubectl delete clusterrole,clusterrolebinding hawser-hub-source-membership",
		"kubectl -n open-cluster-management-hub delete role,rolebinding hawser-hub-source-membership",
	)
	hub.does(
		`echo '{"apiVersion":"cluster.open-cluster-management.io/v1","kind":"ManagedCluster","metadata":{"name":"cluster1"}}' | kubectl apply -f -`,
		"kubectl label managedcluster cluster1 cell=b --overwrite",
	)
	hub.types(
		"kubectl get csr",
		"kubectl get csr -l open-cluster-management.io/cluster-name=cluster1",
		"kubectl get managedclusters",
		"kubectl -n hawser describe certificate,certificaterequest",
	)
}
