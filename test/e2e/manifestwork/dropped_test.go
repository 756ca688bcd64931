package manifestwork

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/test/e2e/harness"
)

// schemaYAML returns a definition whose spec has exactly these fields, of type string.
func schemaYAML(kind string, fields ...string) string {
	properties := make([]string, len(fields))
	for i, f := range fields {
		properties[i] = f + ": {type: string}"
	}
	return strings.Replace(definitionYAML(kind), "{type: object, x-kubernetes-preserve-unknown-fields: true}",
		"{type: object, properties: {spec: {type: object, properties: {"+strings.Join(properties, ", ")+"}}}}", 1)
}

// fieldsYAML returns a custom resource with these fields in its spec.
func fieldsYAML(kind, ns, name string, fields ...string) string {
	values := make([]string, len(fields))
	for i, f := range fields {
		values[i] = f + ": x"
	}
	return fmt.Sprintf("apiVersion: %s.example.com/v1\nkind: %s\nmetadata: {name: %s, namespace: %s}\nspec: {%s}\n",
		strings.ToLower(kind), kind, name, ns, strings.Join(values, ", "))
}

// hasField waits until an object has a field.
func hasField(t *testing.T, r schema.GroupVersionResource, ns, name string, path ...string) {
	t.Helper()
	harness.Eventually(t, func(ctx context.Context) error {
		o, err := shared.API[cluster].Dynamic.Resource(r).Namespace(ns).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		_, has, err := unstructured.NestedFieldNoCopy(o.Object, path...)
		if err == nil && !has {
			err = fmt.Errorf("%s is not in %v", strings.Join(path, "."), o.Object)
		}
		return err
	})
}

func isTrue(c metav1.Condition) bool { return c.Status == metav1.ConditionTrue }

// TestDropped_FieldBeforeItsSchema: a custom resource has a field that its definition lacks. The field is not
// applied, and the condition names it. Once the definition has the field, the cluster gets it.
func TestDropped_FieldBeforeItsSchema(t *testing.T) {
	t.Parallel()
	for kind, strategy := range map[string]workv1.UpdateStrategyType{
		"Halyard": workv1.UpdateStrategyTypeUpdate, "Painter": workv1.UpdateStrategyTypeServerSideApply, "Lanyard": workv1.UpdateStrategyTypeCreateOnly,
	} {
		t.Run(string(strategy), func(t *testing.T) {
			t.Parallel()
			f := shared
			ns := f.NamespaceOn(t, cluster)
			grantAgent(t, strings.ToLower(kind)+".example.com")
			definition := f.Deliver(t, harness.NewWork(t, cluster, "dropped-schema-"+strings.ToLower(kind), schemaYAML(kind, "f1")))
			w := harness.NewWork(t, cluster, "dropped-field-"+strings.ToLower(kind), fieldsYAML(kind, ns, "r", "f1", "f2"))
			w.Spec.ManifestConfigs = []workv1.ManifestConfigOption{{
				ResourceIdentifier: workv1.ResourceIdentifier{Group: strings.ToLower(kind) + ".example.com", Resource: strings.ToLower(kind) + "s", Namespace: ns, Name: "r"},
				UpdateStrategy:     &workv1.UpdateStrategy{Type: strategy},
			}}
			w = f.Create(t, w)
			f.ManifestCondition(t, w, 0, workv1.ManifestApplied, func(c metav1.Condition) bool {
				return c.Status == metav1.ConditionFalse && strings.Contains(c.Message, "spec.f2") && strings.Contains(c.Message, "or the definition of the kind on the cluster")
			})
			f.Update(t, cluster, definition.Name, func(w *workv1.ManifestWork) {
				w.Spec.Workload.Manifests[0] = harness.Manifest(t, schemaYAML(kind, "f1", "f2"))
			})
			hasField(t, customResource(kind), ns, "r", "spec", "f2")
			if c := f.ManifestCondition(t, w, 0, workv1.ManifestApplied, isTrue); c.Message != "Apply manifest complete" {
				t.Errorf("got %q", c.Message)
			}
			f.Ready(t, w)
			f.Remove(t, cluster, w.Name)
		})
	}
}

// TestDropped_FieldLeavesItsSchema: a definition loses a field that its resource still has. The server then no
// longer shows the field, although the resource was not written. The condition names the field until it is
// back.
func TestDropped_FieldLeavesItsSchema(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	grantAgent(t, "gasket.example.com")
	w := f.Deliver(t, harness.NewWork(t, cluster, "dropped-later", schemaYAML("Gasket", "f1", "f2"), fieldsYAML("Gasket", ns, "r", "f1", "f2")))
	w = f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) {
		w.Spec.Workload.Manifests[0] = harness.Manifest(t, schemaYAML("Gasket", "f1"))
	})
	f.ManifestCondition(t, w, 1, workv1.ManifestApplied, func(c metav1.Condition) bool {
		return c.Status == metav1.ConditionFalse && strings.Contains(c.Message, "spec.f2")
	})
	w = f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) {
		w.Spec.Workload.Manifests[0] = harness.Manifest(t, schemaYAML("Gasket", "f1", "f2"))
	})
	hasField(t, customResource("Gasket"), ns, "r", "spec", "f2")
	f.Ready(t, w)
	f.Remove(t, cluster, w.Name)
}

// TestDropped_FieldAndItsSchemaInOneWork: definition and resource get a field in the same work, twelve times.
// The API server needs a moment until the new schema applies. During that time no condition reports the field
// as lost.
func TestDropped_FieldAndItsSchemaInOneWork(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	grantAgent(t, "sheave.example.com")
	fields := []string{"f0"}
	w := f.Deliver(t, harness.NewWork(t, cluster, "dropped-both", schemaYAML("Sheave", fields...), fieldsYAML("Sheave", ns, "r", fields...)))
	for i := range 12 {
		field := fmt.Sprintf("f%d", i+1)
		fields = append(fields, field)
		w = f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) {
			w.Spec.Workload.Manifests[0] = harness.Manifest(t, schemaYAML("Sheave", fields...))
			w.Spec.Workload.Manifests[1] = harness.Manifest(t, fieldsYAML("Sheave", ns, "r", fields...))
		})
		hasField(t, customResource("Sheave"), ns, "r", "spec", field)
		f.Ready(t, w)
	}
	f.Remove(t, cluster, w.Name)
}

// TestDropped_HealthyWorks: the server fills in fields, normalizes values and moves some fields. None of these
// counts as dropped.
func TestDropped_HealthyWorks(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	w := f.Deliver(t, harness.NewWork(t, cluster, "dropped-healthy", healthy(ns)...))
	for _, m := range w.Status.ResourceStatus.Manifests {
		if c := meta.FindStatusCondition(m.Conditions, workv1.ManifestApplied); c.Message != "Apply manifest complete" {
			t.Errorf("%s: %s", m.ResourceMeta.Name, c.Message)
		}
	}
	w = f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) {
		for _, m := range w.Status.ResourceStatus.Manifests {
			w.Spec.ManifestConfigs = append(w.Spec.ManifestConfigs, workv1.ManifestConfigOption{
				ResourceIdentifier: workv1.ResourceIdentifier{Group: m.ResourceMeta.Group, Resource: m.ResourceMeta.Resource, Namespace: m.ResourceMeta.Namespace, Name: m.ResourceMeta.Name},
				UpdateStrategy:     &workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeServerSideApply, ServerSideApply: &workv1.ServerSideApplyConfig{Force: true}},
			})
		}
	})
	w = f.Ready(t, w)
	for _, m := range w.Status.ResourceStatus.Manifests {
		if c := meta.FindStatusCondition(m.Conditions, workv1.ManifestApplied); c.Message != "Apply manifest complete" {
			t.Errorf("applied on the server, %s: %s", m.ResourceMeta.Name, c.Message)
		}
	}
}

// healthy returns manifests that the server changes when it stores them.
func healthy(ns string) []string {
	at := func(text string) string { return strings.ReplaceAll(text, "NS", ns) }
	return []string{
		at(`apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: NS, creationTimestamp: null, labels: {}}
spec:
  replicas: 0
  strategy: {}
  selector: {matchLabels: {app: web}}
  template:
    metadata: {creationTimestamp: null, labels: {app: web}}
    spec:
      serviceAccount: web
      securityContext: {}
      hostNetwork: false
      nodeSelector: {}
      tolerations: []
      volumes: [{name: v, emptyDir: {}}]
      initContainers: null
      containers:
      - name: b
        image: nginx
        command: []
        env: [{name: EMPTY, value: ""}, {name: A, value: "1"}]
        resources: {requests: {cpu: 1000m, memory: 1024Mi}, limits: {cpu: "1"}}
        ports: [{containerPort: 80}, {containerPort: 53, protocol: UDP}]
        livenessProbe: {httpGet: {port: 80}, initialDelaySeconds: 0}
        securityContext: {privileged: false}
        volumeMounts: [{name: v, mountPath: /v, readOnly: false}]
      - {name: a, image: nginx, tty: false}
status: {replicas: 7}
`),
		at("apiVersion: v1\nkind: Secret\nmetadata: {name: text, namespace: NS}\nstringData: {a: b, empty: \"\"}\n"),
		at("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: text, namespace: NS}\ndata: {a: \"\"}\nbinaryData: {}\nimmutable: false\n"),
		at("apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: NS}\nspec: {clusterIP: \"\", selector: {app: web}, ports: [{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}], publishNotReadyAddresses: false, externalIPs: []}\nstatus: {loadBalancer: {}}\n"),
		at("apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: disk, namespace: NS}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1024Mi}}}\nstatus: {phase: Pending}\n"),
		at("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: web, namespace: NS}\nsecrets: []\nautomountServiceAccountToken: false\n"),
		at("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: policy, namespace: NS}\nspec: {podSelector: {}, ingress: [{from: [{podSelector: {}}], ports: [{port: 80}]}]}\n"),
		at("apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: i, namespace: NS}\nspec: {rules: [{host: a.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]}\nstatus: {loadBalancer: {}}\n"),
		at("apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: p, namespace: NS}\nspec: {minAvailable: 0, selector: {matchLabels: {app: web}}}\nstatus: {disruptionsAllowed: 0, currentHealthy: 0, desiredHealthy: 0, expectedPods: 0}\n"),
		at("apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: h, namespace: NS}\nspec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}]}\n"),
		at("apiVersion: autoscaling/v1\nkind: HorizontalPodAutoscaler\nmetadata: {name: h1, namespace: NS}\nspec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, targetCPUUtilizationPercentage: 80}\n"),
		at("apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: c, namespace: NS}\nspec: {schedule: 0 0 1 1 *, suspend: true, jobTemplate: {metadata: {creationTimestamp: null}, spec: {template: {metadata: {creationTimestamp: null}, spec: {restartPolicy: Never, containers: [{name: c, image: nginx}]}}}}}\n"),
		at("apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: s, namespace: NS}\nspec: {replicas: 0, serviceName: web, selector: {matchLabels: {app: s}}, template: {metadata: {labels: {app: s}}, spec: {containers: [{name: c, image: nginx}]}}, volumeClaimTemplates: [{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: v, creationTimestamp: null}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}, status: {}}]}\n"),
		at("apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: b, namespace: NS}\nroleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}\nsubjects: [{apiGroup: \"\", kind: ServiceAccount, name: web, namespace: NS}]\n"),
		at("apiVersion: v1\nkind: Pod\nmetadata: {name: pod, namespace: NS}\nspec: {serviceAccountName: web, containers: [{name: c, image: nginx, resources: {requests: {cpu: 1000m}}}]}\nstatus: {}\n"),
		at("apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {name: l, namespace: NS}\nspec: {leaseDurationSeconds: 10, renewTime: \"2026-01-01T00:00:00.000000Z\"}\n"),
	}
}

// TestDropped_KindsOfFields: fields that the server does not know, and fields that a component of the cluster
// removes.
func TestDropped_KindsOfFields(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	deployment := func(name, spec string) string {
		return fmt.Sprintf("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: %s, namespace: %s}\nspec: {replicas: 0, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: nginx%s}]}}}\n", name, ns, spec)
	}
	unknown := f.Create(t, harness.NewWork(t, cluster, "dropped-unknown", deployment("unknown", "}], shedulerName: x, volumes: [{name: v")))
	f.ManifestCondition(t, unknown, 0, workv1.ManifestApplied, func(c metav1.Condition) bool {
		return c.Status == metav1.ConditionFalse && strings.Contains(c.Message, "spec.template.spec.shedulerName")
	})
	f.ManifestCondition(t, unknown, 0, workv1.ManifestAvailable, isTrue)

	alpha := f.Create(t, harness.NewWork(t, cluster, "dropped-alpha", deployment("alpha", "}], schedulingGroup: {podGroupName: x}, volumes: [{name: v")))
	f.ManifestCondition(t, alpha, 0, workv1.ManifestApplied, func(c metav1.Condition) bool {
		return isTrue(c) && strings.Contains(c.Message, "spec.template.spec.schedulingGroup")
	})
}
