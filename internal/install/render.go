package install

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"
)

// kustomization has the fields that the bases of deploy/ use. Any other is an
// error: what is rendered here is what kustomize renders.
type kustomization struct {
	APIVersion, Kind, Namespace string
	Labels                      []struct{ Pairs map[string]string }
	Resources, Components       []string
	Images                      []struct{ Name, NewName, NewTag string }
	ConfigMapGenerator          []struct {
		Name  string
		Files []string
	}
}

// Images says where images are pulled from, and which version.
type Images struct{ Registry, Version string }

// of returns the image of a program.
func (i Images) of(program string) string { return i.Registry + "/" + program + ":" + i.Version }

// render returns the objects of a base of deploy/, with these images.
func render(files fs.FS, base string, images Images) ([]*unstructured.Unstructured, error) {
	var k kustomization
	data, err := fs.ReadFile(files, path.Join(base, "kustomization.yaml"))
	if err != nil {
		return nil, err
	}
	if err := sigsyaml.UnmarshalStrict(data, &k); err != nil {
		return nil, fmt.Errorf("%s: %w", base, err)
	}
	var all []*unstructured.Unstructured
	for _, name := range k.Resources {
		var objects []*unstructured.Unstructured
		if path.Ext(name) == "" {
			objects, err = render(files, path.Join(base, name), images)
		} else {
			objects, err = readObjects(files, path.Join(base, name))
		}
		if err != nil {
			return nil, err
		}
		all = append(all, objects...)
	}
	renamed := map[string]string{}
	for _, g := range k.ConfigMapGenerator {
		c, err := configMap(files, base, g.Name, g.Files)
		if err != nil {
			return nil, err
		}
		renamed[g.Name] = c.GetName()
		all = append(all, c)
	}
	for _, o := range all {
		if err := k.finish(o, renamed, images); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// finish gives an object what the kustomization says of all.
func (k kustomization) finish(o *unstructured.Unstructured, renamed map[string]string, images Images) error {
	if k.Namespace != "" && !ofTheCluster(o.GetKind()) {
		o.SetNamespace(k.Namespace)
	}
	for _, l := range k.Labels {
		label(o, l.Pairs)
	}
	if o.GetKind() != "Deployment" {
		return nil
	}
	err := useConfigMaps(o, renamed)
	if err == nil && len(k.Components) > 0 { // ../images is the only one
		err = useImages(o, images)
	}
	return err
}

func readObjects(files fs.FS, name string) ([]*unstructured.Unstructured, error) {
	data, err := fs.ReadFile(files, name)
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	for d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096); ; {
		o := &unstructured.Unstructured{}
		if err := d.Decode(&o.Object); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if len(o.Object) > 0 {
			objects = append(objects, o)
		}
	}
}

// ofTheCluster tells whether objects of a kind, of those that deploy/ has, are in
// no namespace.
func ofTheCluster(kind string) bool {
	return slices.Contains([]string{
		"Namespace", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "ValidatingWebhookConfiguration",
	}, kind)
}

func label(o *unstructured.Unstructured, pairs map[string]string) {
	labels := o.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	for k, v := range pairs {
		labels[k] = v
	}
	o.SetLabels(labels)
}

// configMap makes a ConfigMap of files. Its name ends in a hash of them, the one
// that kustomize gives it, so that pods start anew when they change.
func configMap(files fs.FS, base, name string, from []string) (*unstructured.Unstructured, error) {
	data := map[string]any{}
	for _, file := range from {
		b, err := fs.ReadFile(files, path.Join(base, file))
		if err != nil {
			return nil, err
		}
		data[file] = string(b)
	}
	b, err := json.Marshal(map[string]any{"kind": "ConfigMap", "name": "", "data": data}) // kustomize hashes no name
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(b)
	// Without digits and vowels that together could be words.
	hash := strings.NewReplacer("0", "g", "1", "h", "3", "k", "a", "m", "e", "t").Replace(hex.EncodeToString(sum[:])[:10])
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name + "-" + hash}, "data": data,
	}}, nil
}

// useConfigMaps has the volumes of a Deployment name the ConfigMaps that were made.
func useConfigMaps(o *unstructured.Unstructured, renamed map[string]string) error {
	return inPod(o, "volumes", func(volume map[string]any) {
		if c, ok := volume["configMap"].(map[string]any); ok {
			if name, ok := renamed[fmt.Sprint(c["name"])]; ok {
				c["name"] = name
			}
		}
	})
}

func useImages(o *unstructured.Unstructured, images Images) error {
	return inPod(o, "containers", func(c map[string]any) {
		c["image"] = images.of(fmt.Sprint(c["image"]))
	})
}

// inPod calls change with each element of a list in the pod of a Deployment.
func inPod(o *unstructured.Unstructured, list string, change func(map[string]any)) error {
	at := []string{"spec", "template", "spec", list}
	items, found, err := unstructured.NestedSlice(o.Object, at...)
	if err != nil || !found {
		return errors.Join(err, fmt.Errorf("%s %s has no %s", o.GetKind(), o.GetName(), strings.Join(at, ".")))
	}
	for _, item := range items {
		if m, ok := item.(map[string]any); ok {
			change(m)
		}
	}
	return unstructured.SetNestedSlice(o.Object, items, at...)
}
