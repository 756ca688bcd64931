package install

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

const (
	// brokerDeployment is the Deployment of the brokers in deploy/.
	brokerDeployment = "hawser-broker"
	// databaseReplicas is the number of brokers over PostgreSQL in deploy/postgres.
	databaseReplicas = 3
	// noDatabase is the name of no Secret: the works are on the volume of one broker.
	noDatabase = "none"
)

// checkReplicas returns an error for a number of brokers that the store does not allow.
func (s Settings) checkReplicas() error {
	switch {
	case s.Replicas < 0:
		return fmt.Errorf("--replicas %d: use a positive number", s.Replicas)
	case s.Replicas > 1 && s.PostgresSecret == "":
		return fmt.Errorf("--replicas %d needs --postgres-secret: one broker has the volume with the works, several brokers share a PostgreSQL database", s.Replicas)
	}
	return nil
}

// brokers returns the number of brokers.
func (s Settings) brokers() int64 {
	switch {
	case s.Replicas > 0:
		return int64(s.Replicas)
	case s.PostgresSecret != "":
		return databaseReplicas
	}
	return 1
}

// checkStore checks that the Secret of the database is complete, and that no running broker has its works in
// another store.
func (s Settings) checkStore(ctx context.Context, hub kubeclient.Client) error {
	if s.PostgresSecret != "" {
		data, err := readSecret(ctx, hub, s.PostgresSecret)
		if err != nil {
			return err
		}
		if len(data["url"]) == 0 || len(data["password"]) == 0 {
			return incompleteSecretError{s.PostgresSecret}
		}
	}
	have, err := get(ctx, hub, object("apps/v1", "Deployment", namespace, brokerDeployment))
	if err != nil || have == nil {
		return err
	}
	var running appsv1.Deployment
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(have.Object, &running); err != nil {
		return fmt.Errorf("%s: %w", nameOf(have), err)
	}
	if n := running.Spec.Replicas; n != nil && *n == 0 {
		return nil // the operator has stopped the brokers to copy the works
	}
	onVolume := slices.ContainsFunc(running.Spec.Template.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil })
	if onVolume == (s.PostgresSecret == "") {
		return nil
	}
	return otherStoreError{onVolume}
}

// incompleteSecretError reports a Secret, by its name, that lacks settings of a database.
type incompleteSecretError struct{ name string }

func (e incompleteSecretError) Error() string {
	return fmt.Sprintf("--postgres-secret: the hub needs the Secret %s/%s with the keys url and password", namespace, e.name)
}

// Hint returns the command that makes the Secret.
func (e incompleteSecretError) Hint() string {
	return "make it with: kubectl -n " + namespace + " create secret generic " + e.name +
		" --from-literal=url='postgres://USER@HOST/DATABASE?sslrootcert=/etc/hawser/postgres/ca.crt' --from-file=password=FILE --from-file=ca.crt=FILE"
}

// otherStoreError reports running brokers with their works in another store than the wanted one.
type otherStoreError struct{ onVolume bool }

func (e otherStoreError) Error() string {
	if e.onVolume {
		return "--postgres-secret: a broker runs with its works on a volume, and the database does not have them"
	}
	return "--postgres-secret none: brokers run with their works in PostgreSQL, and the volume does not have them"
}

// Hint returns how to move the works.
func (e otherStoreError) Hint() string {
	return "stop the brokers with: kubectl -n " + namespace + " scale deployment " + brokerDeployment + " --replicas=0\n" +
		"then copy the works (deploy/README.md, Several brokers), and run this command again"
}

// overDatabase makes objects those of brokers over the database of s.
func (s Settings) overDatabase(objects []*unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	return merge(objects, object("apps/v1", "Deployment", "", brokerDeployment, "spec", map[string]any{
		"replicas": s.brokers(),
		"template": map[string]any{"spec": map[string]any{
			"containers": []any{map[string]any{"name": "broker", "env": []any{
				map[string]any{"name": "STORE_URL", "valueFrom": map[string]any{"secretKeyRef": map[string]any{"name": s.PostgresSecret}}},
			}}},
			"volumes": []any{map[string]any{"name": "postgres", "secret": map[string]any{"secretName": s.PostgresSecret}}},
		}},
	}))
}
