package architecture

import (
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

func TestSplitIdentifier_FindsWords(t *testing.T) {
	for name, want := range map[string]string{
		"x":                                "x",
		"newGrid":                          "new grid",
		"TLSConfig":                        "tls config",
		"clientIDs":                        "client ids",
		"IDsOfClients":                     "ids of clients",
		"CSRSigner":                        "csr signer",
		"parseX509":                        "parse x509",
		"HTTP2Server":                      "http2 server",
		"sha256sum":                        "sha256sum",
		"TestGC_KeepsRecordsOfOpenCursors": "test gc keeps records of open cursors",
		"hawser_broker_works_total":        "hawser broker works total",
		"WORK_STATE_DELETED":               "work state deleted",
		"hawser.dev/store-id":              "hawser dev store id",
		"dev.hawser.sync.v1.sync_report":   "dev hawser sync v1 sync report",
		"isA":                              "is a",
		"AWSUsers":                         "aws users",
		"_":                                "",
		"größeÄndern":                      "größe ändern",
	} {
		if got := strings.Join(splitIdentifier(name), " "); got != want {
			t.Errorf("splitIdentifier(%q) is %q, want %q", name, got, want)
		}
	}
}

func TestDeclaredNames_FindsAllKinds(t *testing.T) {
	const src = `package aPackage
import anImport "os"
const aConst = 1
var aVar, _ = 2, used
type aType[aTypeParam any] struct { aField, another int; Embedded }
type anInterface interface { aMethod(aParam int) (aResult int) }
func (aReceiver *T) aFunc() {
	aLocal, other.field := 1, 2
aLabel:
	for aKey, aValue := range used { assigned = 3 }
	for range used {}
	func(aLiteralParam int) {}(1)
}
`
	file, err := parser.ParseFile(token.NewFileSet(), "a.go", src, parser.SkipObjectResolution)
	if file == nil {
		t.Fatal(err) // the source has an intended error, and is parsed nevertheless
	}
	var got []string
	for _, name := range declaredNames(file) {
		got = append(got, name.Name)
	}
	want := strings.Fields(`aConst aField aFunc aKey aLabel aLiteralParam aLocal aMethod aPackage aParam aReceiver
		aResult aType aTypeParam aValue aVar anImport anInterface another`)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("found %q\nwant  %q", got, want)
	}
}
