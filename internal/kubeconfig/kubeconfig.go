// Package kubeconfig finds the kube-apiserver of a program the way kubectl does.
package kubeconfig

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Load returns the client configuration in the file at path. An empty path
// means the files that the environment variable KUBECONFIG names, then
// ~/.kube/config, then the ServiceAccount of the pod that the program runs in.
func Load(path string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = path
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("find the kube-apiserver (by flag, KUBECONFIG or in a pod): %w", err)
	}
	return cfg, nil
}
