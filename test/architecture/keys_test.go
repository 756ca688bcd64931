package architecture

import (
	"fmt"
	"go/ast"
	"slices"
	"testing"
)

// keyReader is the one file that reads keys and certificates of peers: it judges them before anything is
// computed.
const keyReader = "internal/identity/keys.go"

// readsKeys are the files that may read keys and certificates nevertheless: they do not verify anything of a
// peer with them.
var readsKeys = []string{
	"internal/identity/watch.go",                   // when its own certificates expire
	"internal/hubsource/clustercontroller/sign.go", // again what ReadPair has judged
	"internal/install/certmanager.go",              // the same
	"internal/pki/authority.go",                    // its own, ECDSA alone
	"pkg/agent/registration/credential.go",         // its own private key
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
