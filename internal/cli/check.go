package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	workv1 "open-cluster-management.io/api/work/v1"
	"sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/internal/admission"
	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

func newCheck(env Env) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "check -f FILE",
		Short: "Report whether a hub would accept the ManifestWorks in a file",
		Long: `Report whether a hub would accept the ManifestWorks in a file, and why not.

  hawser check -f web.yaml

It needs neither a hub nor a broker, and applies the rules of hub-source's webhook: a
pipeline can reject a work before it is merged. Objects of other kinds are ignored. Two
rules need the hub: whether a user may use the executor of a work, and whether hub-source
has a lower limit (webhook.manifestLimit).`,
		Args: cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := given(cmd, "filename", "name a file, or - for standard input"); err != nil {
				return err
			}
			if file == "-" {
				return checkWorks(env, file, cmd.InOrStdin())
			}
			f, err := os.Open(file)
			if err != nil {
				return err
			}
			return errors.Join(checkWorks(env, file, f), f.Close())
		},
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "file with ManifestWorks in YAML or JSON, - for standard input")
	return cmd
}

// checkWorks prints, for each ManifestWork in a file, whether a hub would accept it. It fails if one would be
// rejected, or if there is none.
func checkWorks(env Env, file string, in io.Reader) error {
	works, refused := 0, 0
	for r := utilyaml.NewYAMLReader(bufio.NewReader(in)); ; {
		text, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		w, raw, err := workIn(text)
		if err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		if w == nil {
			continue
		}
		works++
		answer := ruled(raw)
		for _, warning := range answer.Warnings {
			if err := printf(env.Stderr, "Warning: %s/%s: %s\n", w.Namespace, w.Name, warning); err != nil {
				return err
			}
		}
		output := fmt.Sprintf("would be accepted, %s of %s bytes", grouped(manifestwork.ManifestsSize(w)), grouped(manifestwork.MaxManifestsSize))
		if answer.Problem != "" {
			refused++
			output = "would be rejected: " + answer.Problem
		}
		if err := printf(env.Stdout, "ManifestWork %s/%s %s\n", w.Namespace, w.Name, output); err != nil {
			return err
		}
	}
	switch {
	case works == 0:
		return fmt.Errorf("there is no ManifestWork (%s) in %s", workv1.GroupVersion, file)
	case refused > 0:
		return fmt.Errorf("%d of %d ManifestWorks would be rejected", refused, works)
	}
	return nil
}

// workIn returns the ManifestWork of a document, with its JSON; nil for another kind.
func workIn(text []byte) (*workv1.ManifestWork, []byte, error) {
	raw, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, nil, err
	}
	var is metav1.TypeMeta
	if err := json.Unmarshal(raw, &is); err != nil || is.APIVersion != workv1.GroupVersion.String() || is.Kind != "ManifestWork" {
		return nil, nil, err
	}
	w := &workv1.ManifestWork{}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(w); err != nil {
		return nil, nil, fmt.Errorf("ManifestWork: %w", err)
	}
	return w, raw, nil
}

// ruled returns the answer of hub-source's webhook to a new work.
func ruled(raw []byte) admission.Answer {
	rules := admission.Rules{ManifestLimit: manifestwork.MaxManifestsSize, CleansUp: true}
	return rules.Check(&admissionv1.AdmissionRequest{
		Operation: admissionv1.Create,
		Resource:  metav1.GroupVersionResource{Group: workv1.GroupName, Version: workv1.GroupVersion.Version, Resource: admission.Resource},
		Object:    runtime.RawExtension{Raw: raw},
	})
}
