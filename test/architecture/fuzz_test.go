package architecture

import (
	"fmt"
	"go/ast"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// decoding matches the names of functions that decode bytes or text from a peer or a disk.
var decoding = regexp.MustCompile(`^(Parse|parse|Decode|decode|Unmarshal|unmarshal|unseal)([A-Z].*)?$`)

// decoders maps each function with such a name, and some other functions, to its fuzz target: "directory
// Function" to "directory Target". A method is "directory Type.Method".
var decoders = map[string]string{
	"cmd/agent parseDriver":         "cmd/agent FuzzDriver",
	"cmd/broker config.load":        "cmd/broker FuzzConfig",
	"cmd/broker parseServerConfig":  "cmd/broker FuzzServerConfig",
	"cmd/broker port.UnmarshalJSON": "cmd/broker FuzzServerConfig",
	"cmd/hub-source config.load":    "cmd/hub-source FuzzConfig",

	"internal/admission Decode":                              "internal/admission FuzzReview",
	"internal/admission decodeWork":                          "internal/admission FuzzReview",
	"internal/broker Broker.Publish":                         "internal/broker FuzzPublish",
	"internal/broker/admin parseToken":                       "internal/broker/admin FuzzParseToken",
	"internal/broker/request Decode":                         "internal/broker FuzzPublish",
	"internal/broker/syncstate Sources.LastPosition":         "internal/broker/syncstate FuzzLastPosition",
	"internal/broker/syncstate parseRow":                     "internal/broker/syncstate FuzzRows",
	"internal/broker/syncstate parseState":                   "internal/broker/syncstate FuzzRows",
	"internal/earliest Parse":                                "internal/earliest FuzzParse",
	"internal/broker/denylist ParseSubject":                  "internal/broker/denylist FuzzParseSubject",
	"internal/broker/delivery parsePageToken":                "internal/broker/delivery FuzzParsePageToken",
	"internal/broker/listener/grpc frames.parse":             "internal/broker/listener/grpc FuzzFrames",
	"internal/broker/listener/grpc publishRequest.unmarshal": "internal/broker/listener/grpc FuzzPublishRequest",
	"internal/broker/listener/grpc rawCodec.Unmarshal":       "internal/broker/listener/grpc FuzzPublishRequest",
	"internal/broker/listener/mqtt validate":                 "internal/broker/listener/mqtt FuzzCheck",
	"internal/broker/listener/mqtt decode":                   "internal/broker/listener/mqtt FuzzCheck",
	"internal/broker/listener/mqtt wire.read":                "internal/broker/listener/mqtt FuzzConversation",
	"internal/broker/store/pebble decodeNumber":              "internal/broker/store/pebble FuzzDecodeChange",
	"internal/broker/agentstatus State.UnmarshalText":        "internal/broker/agentstatus FuzzRow",
	"internal/broker/agentstatus decodeRow":                  "internal/broker/agentstatus FuzzRow",
	"internal/broker/store ParseBinding":                     "internal/broker/store/pebble FuzzParseKey",
	"internal/broker/store ParseScopedName":                  "internal/broker/store/pebble FuzzParseKey",
	"internal/broker/store/pebble parseFormerClusterKey":     "internal/broker/store/pebble FuzzParseKey",
	"internal/broker/store/pebble parseOwnerKey":             "internal/broker/store/pebble FuzzParseKey",
	"internal/broker/store/pebble readClean":                 "internal/broker/store/pebble FuzzUnseal",
	"internal/broker/store/postgres decodeChange":            "internal/broker/store/postgres FuzzEntries",
	"internal/broker/store/postgres decodeEntries":           "internal/broker/store/postgres FuzzEntries",
	"internal/broker/store/postgres decodeKey":               "internal/broker/store/postgres FuzzEntries",
	"internal/broker/store/postgres decodeWrite":             "internal/broker/store/postgres FuzzEntries",
	"internal/broker/store/value DecodeBookmark":             "internal/broker/store/pebble FuzzDecodeChange",
	"internal/broker/store/value DecodeChange":               "internal/broker/store/pebble FuzzDecodeChange",
	"internal/broker/store/value DecodeIncarnation":          "internal/broker/store/pebble FuzzDecodeChange",
	"internal/broker/store/value DecodeMeta":                 "internal/broker/store/value FuzzValue",
	"internal/broker/store/value ParseKey":                   "internal/broker/store/pebble FuzzParseKey",
	"internal/broker/store/value ParseMeta":                  "internal/broker/store/pebble FuzzDecodeMeta",
	"internal/broker/store/value ParseNumberKey":             "internal/broker/store/pebble FuzzParseKey",
	"internal/broker/tokens Tokens.Authenticate":             "internal/broker/tokens FuzzAuthenticate",
	"internal/cli agentOf":                                   "internal/cli FuzzApplication",
	"internal/cli applicationOf":                             "internal/cli FuzzApplication",
	"internal/hubsource/registration decide":                 "internal/hubsource/registration FuzzRequest",
	"internal/hubsource/registration kind.keep":              "internal/hubsource/registration FuzzKeep",
	"internal/cmdline Duration.UnmarshalJSON":                "cmd/broker FuzzConfig",
	"internal/cmdline FeatureGates.UnmarshalJSON":            "cmd/hub-source FuzzConfig",
	"internal/hubsource sessionHandler.decode":               "internal/hubsource/core FuzzReportOf",
	"internal/hubsource/registration readRequest":            "internal/hubsource/registration FuzzDecide",
	"internal/hubsource/core ParseAgentList":                 "internal/hubsource/core FuzzParseAgentList",
	"internal/hubsource/core ReportOf":                       "internal/hubsource/core FuzzReportOf",
	"internal/hubsource/core StateOf":                        "internal/hubsource/core FuzzStateOf",
	"internal/ocm ParseSubject":                              "internal/hubsource/clustercontroller FuzzValidate",
	"internal/cmdline Decode":                                "internal/cmdline FuzzDecode",
	"internal/cmdline DecodeLenient":                         "internal/cmdline FuzzDecode",
	"internal/identity/token parseKeys":                      "internal/identity/token FuzzVerify",
	"internal/identity/token Verifier.Verify":                "internal/identity/token FuzzVerify",
	"internal/identity ReadRequest":                          "internal/identity FuzzReadRequest",
	"internal/identity CheckAuthorities":                     "internal/identity FuzzCheckAuthorities",
	"internal/identity Files.read":                           "internal/identity FuzzFiles",
	"internal/identity Mapping.FromCertificate":              "internal/identity FuzzFromCertificate",
	"internal/pki ParseAuthority":                            "internal/pki FuzzParseAuthority",

	"pkg/agent Core.Handle":                        "pkg/agent FuzzHandle",
	"pkg/agent decodeEntry":                        "pkg/agent FuzzDecodeEntry",
	"pkg/agent parseProof":                         "pkg/agent FuzzParseProof",
	"pkg/agent/apply Applier.Apply":                "pkg/agent/apply FuzzApply",
	"pkg/agent/apply Load":                         "pkg/agent/apply FuzzLoad",
	"pkg/agent/apply ParseKnown":                   "pkg/agent/apply FuzzParseKnown",
	"pkg/agent/apply ignoredIn":                    "pkg/agent/apply FuzzIgnoreFields",
	"pkg/agent/apply parseJSONPath":                "pkg/agent/apply FuzzIgnoreFields",
	"pkg/agent/kubeclient discoveryCache.list":     "pkg/agent/kubeclient FuzzDiscovery",
	"pkg/codec ParseOrphanReport":                  "pkg/codec FuzzParseSync",
	"pkg/codec ParseResolveOrphan":                 "pkg/codec FuzzParseSync",
	"pkg/agent/hubidentity parseClaims":            "pkg/agent/hubidentity FuzzClaims",
	"pkg/agent/kubeclient discoveryCache.versions": "pkg/agent/kubeclient FuzzDiscovery",
	"pkg/agent/registration ReadCredential":        "pkg/agent/registration FuzzShown",
	"pkg/agent/registration ReadSavedState":        "pkg/agent/registration FuzzReadSavedState",
	"pkg/agent/registration read":                  "pkg/agent/registration FuzzShown",
	"pkg/agent/feedback parse":                     "pkg/agent/feedback FuzzRead",
	"pkg/agent/conditionrules Evaluator.Evaluate":  "pkg/agent/conditionrules FuzzEvaluate",
	"pkg/agent/appliedwork recordOf":               "pkg/agent/appliedwork FuzzRecord",
	"pkg/agent/workpolicy ParsePolicy":             "pkg/agent/workpolicy FuzzParsePolicy",
	"pkg/agent/journal Journal.Load":               "pkg/agent/journal FuzzLog",
	"pkg/agent/journal decodeRecord":               "pkg/agent/journal FuzzDecodeRecord",
	"pkg/agent/journal unseal":                     "pkg/agent/journal FuzzUnseal",

	"pkg/codec DecodeHashes":                         "pkg/codec FuzzDecodeVersions",
	"pkg/codec DecodeVersions":                       "pkg/codec FuzzDecodeVersions",
	"pkg/codec IsHeartbeat":                          "pkg/codec FuzzUnmarshal",
	"pkg/codec Normalize":                            "pkg/codec FuzzParseEnvelope",
	"pkg/codec ParseAPIError":                        "pkg/codec FuzzParseRegistration",
	"pkg/codec ParseAPIStatus":                       "pkg/codec FuzzParseRegistration",
	"pkg/codec ParseRegistrationAnswer":              "pkg/codec FuzzParseRegistration",
	"pkg/codec ParseRegistrationKeys":                "pkg/codec FuzzParseRegistration",
	"pkg/codec ParseRegistrationObjects":             "pkg/codec FuzzParseRegistration",
	"pkg/codec ParseRegistrationRequest":             "pkg/codec FuzzParseRegistration",
	"pkg/codec parseMessage":                         "pkg/codec FuzzParseRegistration",
	"pkg/codec ParseAck":                             "pkg/codec FuzzParseSync",
	"pkg/codec ParseKeepalive":                       "pkg/codec FuzzParseSync",
	"pkg/codec ParseDisconnectedClusters":            "pkg/codec FuzzParseSync",
	"pkg/codec ParseCheckpoint":                      "pkg/codec FuzzParseSync",
	"pkg/codec ParseSyncReport":                      "pkg/codec FuzzParseSync",
	"pkg/codec ParseCursor":                          "pkg/codec FuzzParseText",
	"pkg/codec ParseDataType":                        "pkg/codec FuzzParseText",
	"pkg/codec ParseEnvelope":                        "pkg/codec FuzzParseEnvelope",
	"pkg/codec ParseEventType":                       "pkg/codec FuzzParseText",
	"pkg/codec ParseInventory":                       "pkg/codec FuzzParseSync",
	"pkg/codec ParseInventoryRequest":                "pkg/codec FuzzParseSync",
	"pkg/codec ParseSession":                         "pkg/codec FuzzParseText",
	"pkg/codec ParseTag":                             "pkg/codec FuzzParseText",
	"pkg/codec CheckSpec":                            "pkg/codec/manifestwork FuzzDecodeSpec",
	"pkg/codec Envelope.PayloadBytes":                "pkg/codec FuzzParseEnvelope",
	"pkg/codec Envelope.readMetadata":                "pkg/codec FuzzJSON",
	"pkg/codec ReportsDeleted":                       "pkg/codec FuzzJSON",
	"pkg/codec SummaryOf":                            "pkg/codec FuzzJSON",
	"pkg/codec Unmarshal":                            "pkg/codec FuzzUnmarshal",
	"pkg/codec WithoutAttribute":                     "pkg/codec FuzzParseEnvelope",
	"pkg/codec decodeList":                           "pkg/codec FuzzDecodeVersions",
	"pkg/codec jsonReader.members":                   "pkg/codec FuzzJSON",
	"pkg/codec parse":                                "pkg/codec FuzzUnmarshal",
	"pkg/codec parseInteger":                         "pkg/codec FuzzUnmarshal",
	"pkg/codec parseSequence":                        "pkg/codec FuzzParseText",
	"pkg/codec parseTime":                            "pkg/codec FuzzUnmarshal",
	"pkg/codec/manifestwork DecodeSpec":              "pkg/codec/manifestwork FuzzDecodeSpec",
	"pkg/codec/manifestwork DecodeStatus":            "pkg/codec/manifestwork FuzzDecodeStatus",
	"pkg/codec/manifestwork parseMetadata":           "pkg/codec/manifestwork FuzzDecodeSpec",
	"pkg/codec FromMessage":                          "pkg/codec FuzzMessage",
	"pkg/codec Message.Proto":                        "pkg/codec FuzzMessage",
	"pkg/codec MessageOfProto":                       "pkg/codec FuzzMessage",
	"pkg/transport/grpc FromStatus":                  "pkg/transport/grpc FuzzFromStatus",
	"pkg/transport/grpc positive":                    "pkg/transport/grpc FuzzReceived",
	"pkg/transport/grpc raw.Unmarshal":               "pkg/transport/grpc FuzzReceived",
	"pkg/transport/grpc received.next":               "pkg/transport/grpc FuzzReceived",
	"pkg/transport/mqtt sessionState.PacketReceived": "pkg/transport/mqtt FuzzBroker",
	"pkg/transport/mqtt ParseFile":                   "pkg/transport/mqtt FuzzFile",
	"pkg/transport/mqtt parseBroker":                 "pkg/transport/mqtt FuzzFile",
	"pkg/transport/mqtt stream.begin":                "pkg/transport/mqtt FuzzBroker",
	"pkg/transport/mqtt Conn.event":                  "pkg/transport/mqtt FuzzBroker",
	"pkg/transport/mqtt/property AcceptedOf":         "pkg/transport/mqtt/property FuzzRead",
	"pkg/transport/mqtt/property Announced":          "pkg/transport/mqtt/property FuzzRead",
	"pkg/transport/mqtt/property HelloOf":            "pkg/transport/mqtt/property FuzzRead",
	"pkg/transport/mqtt/property ReceiptOf":          "pkg/transport/mqtt/property FuzzRead",
	"pkg/transport/mqtt/property Refusal.Error":      "pkg/transport/mqtt/property FuzzRead",
	"pkg/transport/mqtt/topic Parse":                 "pkg/transport/mqtt/topic FuzzParse",
	"pkg/transport/mqtt/topic parse":                 "pkg/transport/mqtt/topic FuzzParse",
	"pkg/transport/mqtt/topic parsePattern":          "pkg/transport/mqtt/topic FuzzParse",
}

// notFuzzed are functions that read only the command line of a user, or what the same command has stored of it.
var notFuzzed = []string{"internal/pki ParseRole", "internal/install ParseIssuer"}

// fuzzed reports whether the decoders of a file need a fuzz target. Packages for a local fleet read only their
// own files.
func fuzzed(s source) bool {
	for _, dir := range []string{"internal/local/demo", "internal/local/fleet", "internal/local/controlplane", "internal/local/postgres", "internal/local/thirdparty", "internal/childproc"} {
		if matches(dir+"/...", s.dir()) {
			return false
		}
	}
	return !s.generated && !s.forTests()
}

func TestDecoders_AreFuzzed(t *testing.T) {
	report(t, checkDecoders(product(t), decoders))

	decode := mustParse(t, "pkg/x/x.go", "package x\nfunc decodeIt(b []byte) error { return nil }")
	fuzz := mustParse(t, "pkg/x/x_test.go", "package x\nimport \"testing\"\nfunc FuzzIt(f *testing.F) {}")
	report(t, checkDecoders([]source{decode, fuzz}, map[string]string{"pkg/x decodeIt": "pkg/x FuzzIt"}))
	wantViolation(t, checkDecoders([]source{decode, fuzz}, nil), "pkg/x decodeIt")
	wantViolation(t, checkDecoders([]source{decode}, map[string]string{"pkg/x decodeIt": "pkg/x FuzzIt"}), "no fuzz target pkg/x FuzzIt")
	wantViolation(t, checkDecoders([]source{fuzz}, map[string]string{"pkg/x decodeIt": "pkg/x FuzzIt"}), "no function pkg/x decodeIt")
}

// joining are the readers of certificate requests, subjects, tokens and payloads of registration.
var joining = []string{
	"internal/broker/denylist ParseSubject", "internal/broker/tokens Tokens.Authenticate", "internal/cli applicationOf",
	"internal/earliest Parse", "internal/ocm ParseSubject", "internal/identity ReadRequest",
	"internal/hubsource/registration readRequest", "internal/hubsource/registration decide", "internal/hubsource/registration kind.keep",
	"internal/identity CheckAuthorities", "internal/identity Mapping.FromCertificate", "internal/identity/token Verifier.Verify", "internal/identity/token parseKeys",
	"pkg/agent/registration ReadCredential", "pkg/agent/registration ReadSavedState", "pkg/agent/registration read",
	"pkg/codec ParseRegistrationAnswer", "pkg/codec ParseRegistrationRequest",
}

// TestFuzzJoining_HasEachReader: `make fuzz-joining` runs the target of each reader, and FuzzRegister for the
// broker.
func TestFuzzJoining_HasEachReader(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(makefile), "\nJOINING := ")
	line, _, _ := strings.Cut(rest, "\n")
	pattern, err := regexp.Compile(strings.ReplaceAll(line, "$$", "$"))
	if err != nil || line == "" {
		t.Fatalf("JOINING in the Makefile is %q: %v", line, err)
	}
	targets := []string{"internal/broker FuzzRegister"}
	for _, reader := range joining {
		targets = append(targets, decoders[reader])
	}
	for _, target := range targets {
		if target == "" || !pattern.MatchString(target) {
			t.Errorf("make fuzz-joining leaves %q out", target)
		}
	}
	if pattern.MatchString("pkg/codec FuzzMessage") {
		t.Errorf("make fuzz-joining takes everything: %s", line)
	}
}

func TestFuzzTargets_HaveACorpus(t *testing.T) {
	targets := functions(product(t), isTarget)
	if len(targets) < 10 {
		t.Errorf("found %d fuzz targets: is %s still the root of the repository?", len(targets), root)
	}
	for _, name := range slices.Sorted(maps.Keys(targets)) {
		dir, target, _ := strings.Cut(name, " ")
		inputs, err := os.ReadDir(filepath.Join(root, filepath.FromSlash(dir), "testdata", "fuzz", target))
		if err != nil || len(inputs) == 0 {
			t.Errorf("%s: no corpus (%v): run make fuzz, and commit inputs that reach new code", name, err)
		}
	}
}

func checkDecoders(files []source, table map[string]string) []string {
	var bad []string
	all := functions(files, func(s source, _ *ast.FuncDecl) bool { return fuzzed(s) })
	targets := functions(files, isTarget)
	for name := range functions(files, isDecoder) {
		if table[name] == "" && !slices.Contains(notFuzzed, name) {
			bad = append(bad, name+" reads untrusted input: add to test/architecture which fuzz target feeds it")
		}
	}
	for name, target := range table {
		if !all[name] {
			bad = append(bad, fmt.Sprintf("no function %s: take it out of the table", name))
		}
		if !targets[target] {
			bad = append(bad, fmt.Sprintf("%s: no fuzz target %s", name, target))
		}
	}
	slices.Sort(bad)
	return bad
}

// functions returns the matching functions as "directory Name", and methods as "directory Type.Name".
func functions(files []source, match func(source, *ast.FuncDecl) bool) map[string]bool {
	found := map[string]bool{}
	for _, s := range files {
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && match(s, f) {
				found[s.dir()+" "+receiver(f)+f.Name.Name] = true
			}
		}
	}
	return found
}

// receiver returns "Type." of a method, "" of a function.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	t := f.Recv.List[0].Type
	if p, ok := t.(*ast.StarExpr); ok {
		t = p.X
	}
	if name, ok := t.(*ast.Ident); ok {
		return name.Name + "."
	}
	return "?." // of a generic type; no decoder is one
}

func isTarget(s source, f *ast.FuncDecl) bool {
	return s.isTest() && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Fuzz")
}

func isDecoder(s source, f *ast.FuncDecl) bool {
	return fuzzed(s) && decoding.MatchString(f.Name.Name)
}
