package fleet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const manifests = `apiVersion: v1
kind: Namespace
metadata: {name: hawser}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: hawser}
data:
  config.yaml: |
    broker: hawser-broker.hawser.svc:8090
    caFile: /etc/tls/ca.crt
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: program, namespace: hawser}
spec:
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec:
      containers:
        - name: program
          args: ["--config=/etc/config/config.yaml", "--name=$(NAME)", "--listen=[$(POD_IP)]:1", "--literal=$(OTHER)"]
          env:
            - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
            - {name: NAME, valueFrom: {secretKeyRef: {name: certificate, key: name}}}
          ports: [{name: admin, containerPort: 8081}]
          readinessProbe: {httpGet: {path: /readyz, port: admin}}
          volumeMounts:
            - {name: config, mountPath: /etc/config}
            - {name: tls, mountPath: /etc/tls}
            - {name: data, mountPath: /var/lib/data}
      volumes:
        - {name: config, configMap: {name: settings}}
        - {name: tls, secret: {secretName: certificate}}
        - {name: data, emptyDir: {}}
`

func testPod(t *testing.T) pod {
	t.Helper()
	return pod{
		dir: t.TempDir(), ip: "127.9.0.2", broker: "127.9.0.1:8090",
		secret: func(string) (map[string][]byte, error) {
			return map[string][]byte{"ca.crt": []byte("the CA"), "name": []byte("cluster1")}, nil
		},
	}
}

func TestRendered_Prepare(t *testing.T) {
	r, err := parseRendered([]byte(manifests))
	if err != nil {
		t.Fatal(err)
	}
	p := testPod(t)
	got, err := r.prepare(p)
	if err != nil {
		t.Fatal(err)
	}
	want := command{
		args:      []string{"--config=" + p.dir + "/config/config.yaml", "--name=cluster1", "--listen=[127.9.0.2]:1", "--literal=$(OTHER)"},
		env:       []string{"POD_IP=127.9.0.2", "NAME=cluster1"},
		readyPort: 8081,
		readyPath: "/readyz",
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(command{})); diff != "" {
		t.Errorf("command (-want +got):\n%s", diff)
	}
	for file, want := range map[string]string{
		"config/config.yaml": "broker: 127.9.0.1:8090\ncaFile: " + p.dir + "/tls/ca.crt\n",
		"tls/ca.crt":         "the CA",
	} {
		got, err := os.ReadFile(filepath.Join(p.dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s is %q, want %q", file, got, want)
		}
	}
	if info, err := os.Stat(filepath.Join(p.dir, "data")); err != nil || !info.IsDir() {
		t.Errorf("the empty volume is not a directory: %v", err)
	}
}

func TestRendered_RejectsSettingsOfProcess(t *testing.T) {
	for name, tc := range map[string]struct{ old, with, want string }{
		"two deployments":       {"kind: Namespace", "kind: Deployment", "more than one Deployment"},
		"no deployment":         {"kind: Deployment", "kind: DaemonSet", "found 0 containers"},
		"unknown field":         {"volumeMounts:", "volumesMount:", "volumesMount"},
		"missing config map":    {"configMap: {name: settings}", "configMap: {name: other}", "ConfigMap other is not rendered"},
		"host path":             {"emptyDir: {}", "hostPath: {path: /}", "a kind of volume"},
		"missing secret key":    {"key: name}", "key: other}", "has no key other"},
		"downward API":          {"fieldPath: status.podIP", "fieldPath: spec.nodeName", "a process cannot see"},
		"no readiness probe":    {"readinessProbe:", "livenessProbe:", "no HTTP readiness probe"},
		"probe of another port": {"port: admin}", "port: other}", "names no port"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := strings.Replace(manifests, tc.old, tc.with, 1)
			if changed == manifests {
				t.Fatalf("the manifests have no %q", tc.old)
			}
			r, err := parseRendered([]byte(changed))
			if err == nil {
				_, err = r.prepare(testPod(t))
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one about %q", err, tc.want)
			}
		})
	}
}
