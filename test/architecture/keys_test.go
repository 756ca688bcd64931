package architecture

import (
	"fmt"
	"go/ast"
	"slices"
	"testing"
)

// keyReader is the only file that reads keys and certificates of peers. It checks them before any computation.
const keyReader = "internal/identity/keys.go"

// readsKeys are the exceptions. These files verify nothing of a peer with the keys that they read.
var readsKeys = []string{
	"internal/identity/watch.go",                   // when the program's own certificates expire
	"internal/hubsource/clustercontroller/sign.go", // after ReadPair has checked the pair
	"internal/install/certmanager.go",              // after ReadPair has checked the pair
	"internal/pki/authority.go",                    // certificates of Hawser's own CA, always ECDSA
	"pkg/agent/registration/credential.go",         // the agent's own private key
}

// TestKeys_AreReadOnce: code that reads a key of a peer elsewhere would skip the checks of keyReader.
func TestKeys_AreReadOnce(t *testing.T) {
	report(t, checkKeys(tree(t)))

	elsewhere := mustParse(t, "pkg/x/x.go", "package x\nimport \"crypto/x509\"\nvar _, _ = x509.ParseCertificateRequest(nil)")
	wantViolation(t, checkKeys([]source{elsewhere}), "pkg/x/x.go:3")
}

func checkKeys(files []source) (bad []string) {
	readers := []string{
		"ParseCertificate", "ParseCertificates", "ParseCertificateRequest", "ParsePKIXPublicKey", "ParsePKCS1PublicKey", "ParsePKCS8PrivateKey", "ParsePKCS1PrivateKey",
		"X509KeyPair", "LoadX509KeyPair", "AppendCertsFromPEM",
	}
	for _, s := range files {
		if s.generated || s.forTests() || s.path == keyReader || slices.Contains(readsKeys, s.path) {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			if call, ok := n.(*ast.SelectorExpr); ok && slices.Contains(readers, call.Sel.Name) {
				bad = append(bad, fmt.Sprintf("%s: %s reads what a peer may have made: use %s", s.fset.Position(n.Pos()), call.Sel.Name, keyReader))
			}
			return true
		})
	}
	return bad
}
