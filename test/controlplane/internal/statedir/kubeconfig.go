package statedir

import (
	"fmt"
	"os"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/hawser-io/hawser/test/controlplane/internal/pki"
)

// Certificates returns the certificates and keys of this control plane. They are created at the first start and
// never change.
func (d *Dir) Certificates(now time.Time) (pki.Files, error) {
	return pki.Ensure(d.Path("pki"), now)
}

// WriteKubeconfig writes the administrator's kubeconfig for the API at server (a URL), with all credentials in
// one file. It returns the path.
func (d *Dir) WriteKubeconfig(name, server string, certs pki.Files) (string, error) {
	var data [3][]byte
	for i, file := range []string{certs.CACert, certs.AdminCert, certs.AdminKey} {
		var err error
		if data[i], err = os.ReadFile(file); err != nil {
			return "", fmt.Errorf("write kubeconfig: %w", err)
		}
	}
	admin := name + "-admin"
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: data[0]}
	kubeconfig.AuthInfos[admin] = &clientcmdapi.AuthInfo{ClientCertificateData: data[1], ClientKeyData: data[2]}
	kubeconfig.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: admin}
	kubeconfig.CurrentContext = name
	out, err := clientcmd.Write(*kubeconfig)
	if err != nil {
		return "", fmt.Errorf("write kubeconfig: %w", err)
	}
	path := d.Path("kubeconfig")
	if err := writeFile(path, out); err != nil {
		return "", fmt.Errorf("write kubeconfig: %w", err)
	}
	return path, nil
}
