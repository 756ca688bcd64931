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
	"maps"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	sigsyaml "sigs.k8s.io/yaml"
)

// kustomization has the fields that the bases and overlays of deploy/ use. Any other field is an error, so that
// the result equals that of kustomize.
type kustomization struct {
	APIVersion, Kind, Namespace string
	Labels                      []struct{ Pairs map[string]string }
	Resources, Components       []string
	Images                      []struct{ Name, NewName, NewTag string }
	ConfigMapGenerator          []generator
	// Patches are files with strategic merge patches.
	Patches []struct{ Path string }
}

// generator makes a ConfigMap from files; with the behavior replace it replaces the one of a base.
type generator struct {
	Name, Behavior string
	Files          []string
}

// Images is the registry and the version of the images.
type Images struct{ Registry, Version string }

// of returns the image of a program.
func (i Images) of(program string) string { return i.Registry + "/" + program + ":" + i.Version }

// edit changes objects before kustomize would hash names; it does not rename any.
type edit func([]*unstructured.Unstructured) []*unstructured.Unstructured

// render returns the objects of a base or overlay of deploy/, with these images and edits.
func render(files fs.FS, base string, images Images, edits ...edit) ([]*unstructured.Unstructured, error) {
	all, made, err := collect(files, base, images)
	if err != nil {
		return nil, err
	}
	for _, change := range edits {
		all = change(all)
	}
	renamed := map[string]string{}
	for name, c := range made {
		if renamed[name], err = hashed(name, c); err != nil {
			return nil, err
		}
		c.SetName(renamed[name])
	}
	for _, o := range all {
		if o.GetKind() != "Deployment" {
			continue
		}
		if err := useConfigMaps(o, renamed); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// collect returns the objects of a base or overlay. made has those ConfigMaps of them that are made from files,
// by their names without hash.
func collect(files fs.FS, base string, images Images) (all []*unstructured.Unstructured, made map[string]*unstructured.Unstructured, err error) {
	var k kustomization
	data, err := fs.ReadFile(files, path.Join(base, "kustomization.yaml"))
	if err != nil {
		return nil, nil, err
	}
	if err := sigsyaml.UnmarshalStrict(data, &k); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", base, err)
	}
	made = map[string]*unstructured.Unstructured{}
	for _, name := range k.Resources {
		var objects []*unstructured.Unstructured
		var below map[string]*unstructured.Unstructured
		if path.Ext(name) == "" {
			objects, below, err = collect(files, path.Join(base, name), images)
		} else {
			objects, err = readObjects(files, path.Join(base, name))
		}
		if err != nil {
			return nil, nil, err
		}
		maps.Copy(made, below)
		all = append(all, objects...)
	}
	for _, g := range k.ConfigMapGenerator {
		if all, err = g.add(files, base, all, made); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", base, err)
		}
	}
	for _, p := range k.Patches {
		if err := patch(files, path.Join(base, p.Path), all); err != nil {
			return nil, nil, err
		}
	}
	for _, o := range all {
		if err := k.finish(o, images); err != nil {
			return nil, nil, err
		}
	}
	return all, made, nil
}

// add adds the ConfigMap.
func (g generator) add(files fs.FS, base string, all []*unstructured.Unstructured, made map[string]*unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	data, err := configData(files, base, g.Files)
	if err != nil {
		return nil, err
	}
	have := made[g.Name]
	switch {
	case (g.Behavior == "replace") != (have != nil) || g.Behavior != "" && have == nil:
		return nil, fmt.Errorf("ConfigMap %s: behavior %q, and a base makes it: %t", g.Name, g.Behavior, have != nil)
	case have != nil:
		have.Object["data"] = data
		return all, nil
	}
	made[g.Name] = object("v1", "ConfigMap", "", g.Name, "data", data)
	return append(all, made[g.Name]), nil
}

// patch applies the strategic merge patches in a file to the objects they name.
func patch(files fs.FS, file string, all []*unstructured.Unstructured) error {
	patches, err := readObjects(files, file)
	if err != nil {
		return err
	}
	for _, p := range patches {
		i := slices.IndexFunc(all, func(o *unstructured.Unstructured) bool {
			return o.GroupVersionKind() == p.GroupVersionKind() && o.GetName() == p.GetName()
		})
		if i < 0 {
			return fmt.Errorf("%s: no base has the %s %s", file, p.GetKind(), p.GetName())
		}
		kind, err := scheme.Scheme.New(p.GroupVersionKind())
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		changed, err := strategicpatch.StrategicMergeMapPatch(all[i].Object, p.Object, kind)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		all[i].Object = changed
	}
	return nil
}

// finish applies the common settings of the kustomization to an object.
func (k kustomization) finish(o *unstructured.Unstructured, images Images) error {
	if k.Namespace != "" && !ofTheCluster(o.GetKind()) {
		o.SetNamespace(k.Namespace)
	}
	for _, l := range k.Labels {
		label(o, l.Pairs)
	}
	if o.GetKind() != "Deployment" || len(k.Components) == 0 { // ../images is the only component
		return nil
	}
	return useImages(o, images)
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

// ofTheCluster reports whether objects of a kind, of those in deploy/, are not namespaced.
func ofTheCluster(kind string) bool {
	return slices.Contains([]string{
		"Namespace", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "ValidatingWebhookConfiguration",
		"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
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

// configData returns the data of a ConfigMap made from files.
func configData(files fs.FS, base string, from []string) (map[string]any, error) {
	data := map[string]any{}
	for _, file := range from {
		b, err := fs.ReadFile(files, path.Join(base, file))
		if err != nil {
			return nil, err
		}
		data[file] = string(b)
	}
	return data, nil
}

// hashed returns the name of a ConfigMap with the hash of its content, as kustomize computes it, so that pods
// restart when it changes.
func hashed(name string, c *unstructured.Unstructured) (string, error) {
	b, err := json.Marshal(map[string]any{"kind": "ConfigMap", "name": "", "data": c.Object["data"]}) // kustomize hashes without the name
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	// Replaces digits and vowels, so that the hash forms no words.
	hash := strings.NewReplacer("0", "g", "1", "h", "3", "k", "a", "m", "e", "t").Replace(hex.EncodeToString(sum[:])[:10])
	return name + "-" + hash, nil
}

// useConfigMaps sets the names of the generated ConfigMaps in the volumes of a Deployment.
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
