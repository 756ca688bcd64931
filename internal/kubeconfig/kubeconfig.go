// Package kubeconfig finds the kube-apiserver of a program. Unlike kubectl, it never uses the kubeconfig in the
// home directory of the user who starts the program.
package kubeconfig

import (
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Load returns the client configuration in the file at path, the value of a flag. For an empty path it uses the
// files in the environment variable KUBECONFIG, otherwise the ServiceAccount of the program's pod. The error
// names these sources, and the flag.
func Load(path, flag string) (*rest.Config, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: path, Precedence: filepath.SplitList(os.Getenv(clientcmd.RecommendedConfigPathEnvVar))}
	if path == "" && len(rules.Precedence) == 0 {
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("find the kube-apiserver: %w (outside of a pod, --%s or KUBECONFIG names its kubeconfig)", err, flag)
		}
		return cfg, nil
	}
	files, err := rules.Load()
	if err != nil {
		return nil, fmt.Errorf("find the kube-apiserver: %w", err)
	}
	cfg, err := clientcmd.NewNonInteractiveClientConfig(*files, "", nil, rules).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("find the kube-apiserver: %w (looked in --%s %q and KUBECONFIG %q)", err, flag, path, rules.Precedence)
	}
	return cfg, nil
}
