package manifestwork

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	workv1 "open-cluster-management.io/api/work/v1"
)

// TestOneTooLarge: for a manifest that no work can hold, the text does not advise to split the work.
func TestOneTooLarge(t *testing.T) {
	of := func(kind string, size int) workv1.Manifest {
		return workv1.Manifest{RawExtension: runtime.RawExtension{Raw: []byte(`{"kind":"` + kind + `","metadata":{"name":"n"},"x":"` + strings.Repeat("x", size) + `"}`)}}
	}
	small := of("ConfigMap", 10)
	for kind, want := range map[string]string{"CustomResourceDefinition": "drop the descriptions", "Secret": "divide its data", "Deployment": "remove the parts"} {
		if got := OneTooLarge([]workv1.Manifest{small, of(kind, 600)}, 500); !strings.HasPrefix(got, `manifest 1, "`+kind+`" "n", alone is too large: `+want) {
			t.Error(got)
		}
		if got := OneTooLarge([]workv1.Manifest{of(kind, 300), of(kind, 300)}, 500); got != "" {
			t.Error(got)
		}
	}
}
