package agent

import (
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// hasPriorityLevelOfItsOwn applies deploy/agent-flowschema. The kube-apiserver names the schema that matches a
// request in its answer.
func hasPriorityLevelOfItsOwn(s *spoke) {
	s.Kubectl("apply", "--server-side", "-k", "../../../deploy/agent-flowschema")
	schemas := s.Kube.FlowcontrolV1().FlowSchemas()
	for path, name := range map[string]string{
		"/api/v1/namespaces/default/configmaps":                         "hawser-agent",
		"/apis/work.open-cluster-management.io/v1/appliedmanifestworks": "hawser-agent",
		"/version": "hawser-agent",
		"/apis/coordination.k8s.io/v1/namespaces/hawser/leases/no-lease": "hawser-agent-lease",
	} {
		schema, err := schemas.Get(s.Context(), name, metav1.GetOptions{})
		if err != nil {
			s.Fatal(err)
		}
		s.Eventually(func() error { // the server reads its schemas by a watch
			got, err := s.schemaOf(path)
			if err == nil && got != schema.UID {
				err = fmt.Errorf("%s: matched by the schema %s, want %s, %s", path, got, name, schema.UID)
			}
			return err
		})
	}
	s.applied(work("level", 1, configMap("level", "1")))
}

// schemaOf returns the uid of the FlowSchema of an agent's GET.
func (s *spoke) schemaOf(path string) (types.UID, error) {
	c, err := rest.HTTPClientFor(s.Limited)
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(s.Context(), http.MethodGet, s.Limited.Host+path, nil)
	if err != nil {
		return "", err
	}
	res, err := c.Do(req)
	if err != nil {
		return "", err
	}
	return types.UID(res.Header.Get("X-Kubernetes-Pf-Flowschema-Uid")), res.Body.Close()
}
