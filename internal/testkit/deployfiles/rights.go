package deployfiles

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/internal/kubeconfig"
)

// Without lists the exceptions of CompareRights: roles, and rights as "create events".
type Without struct{ Roles, Objects []string }

// CompareRights fails the test unless the roles in a file of deploy/ grant exactly these rights.
func CompareRights(t *testing.T, file string, rights []kubeconfig.Right, without Without) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var granted, requested []string
	for r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data))); ; {
		text, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		var role rbacv1.Role // a ClusterRole has the same rules
		if err == nil {
			err = yaml.Unmarshal(text, &role)
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(role.Kind, "Role") && !slices.Contains(without.Roles, role.Name) {
			granted = append(granted, grants(&role)...)
		}
	}
	granted = slices.DeleteFunc(granted, func(s string) bool { return slices.Contains(without.Objects, s) })
	for _, r := range rights {
		for _, verb := range r.Verbs {
			requested = append(requested, right(verb, r.Group, r.Resource, r.Object, r.Namespace))
		}
	}
	slices.Sort(granted)
	slices.Sort(requested)
	if d := cmp.Diff(slices.Compact(granted), slices.Compact(requested)); d != "" {
		t.Errorf("%s grants (-), and the program needs (+):\n%s", file, d)
	}
}

func grants(role *rbacv1.Role) (list []string) {
	for _, r := range role.Rules {
		names := r.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				for _, name := range names {
					for _, verb := range r.Verbs {
						list = append(list, right(verb, group, resource, name, role.Namespace))
					}
				}
			}
		}
	}
	return list
}

// right formats a right for display.
func right(verb, group, resource, name, namespace string) string {
	return strings.Join(strings.Fields(strings.Join([]string{verb, resource, group, name, namespace}, " ")), " ")
}
