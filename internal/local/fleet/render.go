package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/internal/childproc"
)

// rendered is one rendered kustomize base of deploy/: the Deployment and its mounts.
type rendered struct {
	deployment appsv1.Deployment
	configMaps map[string]corev1.ConfigMap
	services   map[string]corev1.Service
	// all are the unchanged manifests.
	all []yamlObject
}

// render runs `kubectl kustomize` on a directory.
func render(ctx context.Context, kubectl, dir string) (rendered, error) {
	out, err := childproc.Run(ctx, kubectl, "kustomize", dir)
	if err != nil {
		return rendered{}, err
	}
	r, err := parseRendered(out)
	if err != nil {
		return r, fmt.Errorf("%s: %w", dir, err)
	}
	return r, nil
}

func parseRendered(manifests []byte) (rendered, error) {
	r := rendered{configMaps: map[string]corev1.ConfigMap{}, services: map[string]corev1.Service{}}
	d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), 4096)
	for {
		var raw yamlObject
		if err := d.Decode(&raw); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return r, err
		}
		r.all = append(r.all, raw)
		switch raw.kind {
		case "Deployment":
			if r.deployment.Name != "" {
				return r, errors.New("more than one Deployment")
			}
			if err := raw.into(&r.deployment); err != nil {
				return r, err
			}
		case "ConfigMap":
			var c corev1.ConfigMap
			if err := raw.into(&c); err != nil {
				return r, err
			}
			r.configMaps[c.Name] = c
		case "Service":
			var s corev1.Service
			if err := raw.into(&s); err != nil {
				return r, err
			}
			r.services[s.Namespace+"/"+s.Name] = s
		}
	}
	if n := len(r.deployment.Spec.Template.Spec.Containers); n != 1 {
		return r, fmt.Errorf("want one Deployment with one container, found %d containers", n)
	}
	return r, nil
}

// yamlObject keeps the bytes of an object until its kind is known.
type yamlObject struct {
	kind string
	raw  []byte
}

func (o *yamlObject) UnmarshalJSON(b []byte) error {
	var t metav1.TypeMeta
	o.raw = bytes.Clone(b)
	err := json.Unmarshal(b, &t)
	o.kind = t.Kind
	return err
}

func (o *yamlObject) into(v any) error { return sigsyaml.UnmarshalStrict(o.raw, v) }

// brokerService is the address of the broker in deploy/.
const brokerService = "hawser-broker.hawser.svc:8090"

// pod is the place of a rendered Deployment on this machine.
type pod struct {
	// dir holds one directory per volume.
	dir string
	// ip is the loopback address instead of the pod's. broker is the address instead of brokerService, because
	// there is no DNS.
	ip, broker string
	// secret returns the files of a Secret; no base of deploy/ contains Secrets.
	secret func(name string) (map[string][]byte, error)
}

// command is the command line that kubelet would run, with mount paths and field references replaced.
type command struct {
	args []string
	env  []string
	// readyPort and readyPath come from the readiness probe.
	readyPort int
	readyPath string
}

// prepare writes the volumes and returns the command line. It rewrites only mount paths, in arguments and in
// files of ConfigMaps, and in the files also the broker's address. $(VAR) is expanded as kubelet does.
func (r rendered) prepare(p pod) (command, error) {
	spec := r.deployment.Spec.Template.Spec
	c := spec.Containers[0]
	paths, err := r.mounts(spec, c, p)
	if err != nil {
		return command{}, err
	}
	vars := map[string]string{}
	var out command
	for _, e := range c.Env {
		v, err := envValue(e, r.deployment, p)
		if err != nil {
			return out, err
		}
		vars[e.Name] = v
		out.env = append(out.env, e.Name+"="+v)
	}
	for _, a := range c.Args {
		out.args = append(out.args, paths.rewrite(expand(a, vars)))
	}
	probe := c.ReadinessProbe
	if probe == nil || probe.HTTPGet == nil {
		return out, fmt.Errorf("deployment %s: no HTTP readiness probe", r.deployment.Name)
	}
	out.readyPath = probe.HTTPGet.Path
	out.readyPort = probe.HTTPGet.Port.IntValue()
	for _, port := range c.Ports {
		if port.Name == probe.HTTPGet.Port.StrVal {
			out.readyPort = int(port.ContainerPort)
		}
	}
	if out.readyPort == 0 {
		return out, fmt.Errorf("deployment %s: readiness probe names no port of the container", r.deployment.Name)
	}
	return out, nil
}

var reference = regexp.MustCompile(`\$\(([A-Za-z_][A-Za-z0-9_]*)\)`)

func expand(arg string, vars map[string]string) string {
	return reference.ReplaceAllStringFunc(arg, func(m string) string {
		if v, ok := vars[m[2:len(m)-1]]; ok {
			return v
		}
		return m
	})
}

func envValue(e corev1.EnvVar, d appsv1.Deployment, p pod) (string, error) {
	if e.ValueFrom == nil {
		return e.Value, nil
	}
	if f := e.ValueFrom.FieldRef; f != nil {
		switch f.FieldPath {
		case "status.podIP", "status.hostIP":
			return p.ip, nil
		case "metadata.namespace":
			return d.Namespace, nil
		case "metadata.name", "metadata.uid": // a restart of a process equals a restart of a container
			return d.Name + "-" + p.ip, nil
		}
	}
	if s := e.ValueFrom.SecretKeyRef; s != nil {
		files, err := p.secret(s.Name)
		if err != nil {
			return "", err
		}
		if v, ok := files[s.Key]; ok {
			return string(v), nil
		}
		return "", fmt.Errorf("deployment %s: environment variable %s: Secret %s has no key %s", d.Name, e.Name, s.Name, s.Key)
	}
	return "", fmt.Errorf("deployment %s: environment variable %s comes from somewhere a process cannot see", d.Name, e.Name)
}

// mountPaths maps mount paths to directories of this machine, longest first.
type mountPaths []struct{ from, to string }

func (m mountPaths) rewrite(s string) string {
	pairs := make([]string, 0, 2*len(m))
	for _, p := range m {
		pairs = append(pairs, p.from, p.to)
	}
	return strings.NewReplacer(pairs...).Replace(s)
}

func (r rendered) mounts(spec corev1.PodSpec, c corev1.Container, p pod) (mountPaths, error) {
	var m mountPaths
	for _, v := range c.VolumeMounts {
		m = append(m, struct{ from, to string }{v.MountPath, filepath.Join(p.dir, v.Name)})
	}
	for _, v := range spec.Volumes {
		dir := filepath.Join(p.dir, v.Name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		files, err := r.volumeFiles(v, p, m)
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", v.Name, err)
		}
		for name, content := range files {
			if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
				return nil, err
			}
		}
	}
	return m, nil
}

func (r rendered) volumeFiles(v corev1.Volume, p pod, m mountPaths) (map[string][]byte, error) {
	files := map[string][]byte{}
	switch {
	case v.ConfigMap != nil:
		cm, ok := r.configMaps[v.ConfigMap.Name]
		if !ok {
			return nil, fmt.Errorf("ConfigMap %s is not rendered", v.ConfigMap.Name)
		}
		for name, content := range cm.Data {
			files[name] = []byte(strings.ReplaceAll(m.rewrite(content), brokerService, p.broker))
		}
	case v.Secret != nil:
		return p.secret(v.Secret.SecretName)
	case v.EmptyDir != nil, v.PersistentVolumeClaim != nil:
	default:
		return nil, errors.New("a kind of volume that a process cannot have")
	}
	return files, nil
}
