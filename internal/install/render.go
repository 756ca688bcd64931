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

// imagesComponent is the component of a base that names the images.
const imagesComponent = "../images"

// Images is the registry and the version of the images.
type Images struct{ Registry, Version string }

// of returns the image of a program.
func (i Images) of(program string) string { return i.Registry + "/" + program + ":" + i.Version }

// edit changes objects before kustomize would hash names; it does not rename any.
type edit func([]*unstructured.Unstructured) ([]*unstructured.Unstructured, error)

// render returns the objects of a base or overlay of deploy/ after components, with these images and edits.
func render(files fs.FS, layers []string, images Images, edits ...edit) ([]*unstructured.Unstructured, error) {
	r := rendering{files: files, images: images, made: map[string]*unstructured.Unstructured{}}
	for _, dir := range layers {
		if err := r.add(dir); err != nil {
			return nil, err
		}
	}
	var err error
	for _, change := range edits {
		if r.objects, err = change(r.objects); err != nil {
			return nil, err
		}
	}
	renamed := map[string]string{}
	for name, c := range r.made {
		if renamed[name], err = hashed(name, c); err != nil {
			return nil, err
		}
		c.SetName(renamed[name])
	}
	for _, o := range r.objects {
		if o.GetKind() != "Deployment" {
			continue
		}
		if err := useConfigMaps(o, renamed); err != nil {
			return nil, err
		}
	}
	return r.objects, nil
}

// rendering holds the objects of the directories that were added.
type rendering struct {
	files   fs.FS
	images  Images
	objects []*unstructured.Unstructured
	// made has those ConfigMaps of objects that are made from files, by their names without hash.
	made map[string]*unstructured.Unstructured
}

// add adds a base, an overlay or a component. A component changes all objects of the rendering.
func (r *rendering) add(dir string) error {
	var k kustomization
	data, err := fs.ReadFile(r.files, path.Join(dir, "kustomization.yaml"))
	if err != nil {
		return err
	}
	if err := sigsyaml.UnmarshalStrict(data, &k); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	for _, name := range k.Resources {
		if err := r.addResource(path.Join(dir, name)); err != nil {
			return err
		}
	}
	for _, name := range k.Components {
		if name == imagesComponent {
			continue
		}
		if err := r.add(path.Join(dir, name)); err != nil {
			return err
		}
	}
	for _, g := range k.ConfigMapGenerator {
		if r.objects, err = g.add(r.files, dir, r.objects, r.made); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	for _, p := range k.Patches {
		if r.objects, err = patch(r.files, path.Join(dir, p.Path), r.objects); err != nil {
			return err
		}
	}
	for _, o := range r.objects {
		if err := k.finish(o, r.images); err != nil {
			return err
		}
	}
	return nil
}

// addResource adds a file, or a base with its own common settings.
func (r *rendering) addResource(name string) error {
	if path.Ext(name) != "" {
		objects, err := readObjects(r.files, name)
		r.objects = append(r.objects, objects...)
		return err
	}
	below := rendering{files: r.files, images: r.images, made: r.made}
	err := below.add(name)
	r.objects = append(r.objects, below.objects...)
	return err
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

// patch applies the strategic merge patches in a file, and returns the objects that are left.
func patch(files fs.FS, file string, all []*unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	patches, err := readObjects(files, file)
	for _, p := range patches {
		if err == nil {
			all, err = merge(all, p)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return all, nil
}

// merge applies a strategic merge patch to the object that it names, and returns the objects that are left.
func merge(all []*unstructured.Unstructured, p *unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	i := slices.IndexFunc(all, func(o *unstructured.Unstructured) bool {
		return o.GroupVersionKind() == p.GroupVersionKind() && o.GetName() == p.GetName()
	})
	if i < 0 {
		return nil, fmt.Errorf("no base has the %s %s", p.GetKind(), p.GetName())
	}
	kind, err := scheme.Scheme.New(p.GroupVersionKind())
	if err != nil {
		return nil, err
	}
	changed, err := strategicpatch.StrategicMergeMapPatch(all[i].Object, p.Object, kind)
	if err != nil {
		return nil, err
	}
	if all[i].Object = changed; len(changed) == 0 { // $patch: delete
		all = slices.Delete(all, i, i+1)
	}
	return all, nil
}

// finish applies the common settings of the kustomization to an object.
func (k kustomization) finish(o *unstructured.Unstructured, images Images) error {
	if k.Namespace != "" && !ofTheCluster(o.GetKind()) {
		o.SetNamespace(k.Namespace)
	}
	for _, l := range k.Labels {
		label(o, l.Pairs)
	}
	if o.GetKind() != "Deployment" || !slices.Contains(k.Components, imagesComponent) {
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
