package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// hostile is a possible name of a peer. It clears the terminal, rings, changes colors and the writing
// direction, and adds a forged line.
const hostile = "x\x1b[2J\x07\r\u009b31m\u202etxt\u2028\u200b\x7f\nhint: run evil"

// unclean returns the characters of a text that a terminal would interpret.
func unclean(text string) string {
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		i += size
		if r == utf8.RuneError && size == 1 || r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			return fmt.Sprintf("%q at %d", text[i-size:i], i-size)
		}
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "hint: run evil") {
			return "a line of its own"
		}
	}
	return ""
}

// filled returns a message whose texts are all hostile. Its enum fields have their last value.
func filled(m proto.Message) proto.Message {
	r := m.ProtoReflect()
	fields := r.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch name := string(f.Name()); {
		case name == "next_page_token":
		case f.Kind() == protoreflect.StringKind && f.IsList():
			r.Mutable(f).List().Append(protoreflect.ValueOfString(hostile))
		case f.Kind() == protoreflect.StringKind && !f.IsMap():
			r.Set(f, protoreflect.ValueOfString(hostile))
		case f.Kind() == protoreflect.EnumKind && !f.IsList():
			r.Set(f, protoreflect.ValueOfEnum(f.Enum().Values().Get(f.Enum().Values().Len()-1).Number()))
		case f.Kind() == protoreflect.MessageKind && !f.IsList() && !f.IsMap():
			if f.Message().FullName() == "google.protobuf.Timestamp" {
				r.Set(f, protoreflect.ValueOfMessage(timestamppb.New(time.Unix(0, 0)).ProtoReflect()))
			} else if f.Message().ParentFile().Package() == "hawser.v1" {
				filled(r.Mutable(f).Message().Interface())
			}
		}
	}
	return m
}

// hostileBroker answers each call with hostile texts: with results or, if fails is set, with an error.
type hostileBroker struct {
	hawserv1.UnimplementedAdminServiceServer
	fails bool
}

func (b hostileBroker) serve(_ any, s grpc.ServerStream) error {
	name, _ := grpc.MethodFromServerStream(s)
	name = name[strings.LastIndex(name, "/")+1:]
	method := hawserv1.File_hawser_v1_admin_proto.Services().ByName("AdminService").Methods().ByName(protoreflect.Name(name))
	if b.fails || method == nil {
		return status.Error(codes.NotFound, hostile)
	}
	in, out := newMessage(method.Input()), newMessage(method.Output())
	if err := s.RecvMsg(in); err != nil {
		return err
	}
	return s.SendMsg(filled(out))
}

func newMessage(d protoreflect.MessageDescriptor) proto.Message {
	for _, m := range messages {
		if m.ProtoReflect().Descriptor().FullName() == d.FullName() {
			return m.ProtoReflect().New().Interface()
		}
	}
	panic("no message " + d.FullName())
}

// messages are the messages of the service.
var messages = []proto.Message{
	&hawserv1.ListClustersRequest{}, &hawserv1.ListClustersResponse{}, &hawserv1.ListWorksRequest{}, &hawserv1.ListWorksResponse{},
	&hawserv1.ListDiscrepanciesRequest{}, &hawserv1.ListDiscrepanciesResponse{}, &hawserv1.ListQuotasRequest{}, &hawserv1.ListQuotasResponse{},
	&hawserv1.ForceDeleteWorkRequest{}, &hawserv1.ForceDeleteWorkResponse{}, &hawserv1.UnbindClusterRequest{}, &hawserv1.UnbindClusterResponse{},
	&hawserv1.TransferWorkRequest{}, &hawserv1.TransferWorkResponse{}, &hawserv1.ApproveRequest{}, &hawserv1.ApproveResponse{}, &hawserv1.ResolveOrphanRequest{}, &hawserv1.ResolveOrphanResponse{},
	&hawserv1.DenyRequest{}, &hawserv1.DenyResponse{}, &hawserv1.AllowRequest{}, &hawserv1.AllowResponse{}, &hawserv1.ListDenialsRequest{}, &hawserv1.ListDenialsResponse{},
	&hawserv1.BackupRequest{}, &hawserv1.BackupResponse{},
}

// start serves the broker, and returns its address.
func (b hostileBroker) start(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.UnknownServiceHandler(b.serve))
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// hostileHub is a kube-apiserver that answers everything with hostile objects, or refuses it with a hostile reason.
func hostileHub(t *testing.T, dir string, refuses bool) (kubeconfig string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		kind := map[string]string{"managedclusters": "ManagedCluster", "certificatesigningrequests": "CertificateSigningRequest", "manifestworks": "ManifestWork"}
		object := map[string]any{"apiVersion": "v1", "kind": "List", "items": []any{}}
		parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
		at := slices.IndexFunc(parts, func(p string) bool { return kind[p] != "" })
		if at >= 0 {
			one := map[string]any{
				"apiVersion": strings.Join(parts[1:3], "/"), "kind": kind[parts[at]],
				"metadata": map[string]any{"name": hostile, "namespace": hostile, "uid": "u", "finalizers": []any{hostile}, "labels": map[string]any{"open-cluster-management.io/cluster-name": "c1"}, "annotations": map[string]any{requesterAnnotation: hostile, "hawser.dev/member": "true"}},
				"spec":     map[string]any{"username": courier, "signerName": hostile, "request": "", "hubAcceptsClient": false},
				"status":   map[string]any{"conditions": []any{map[string]any{"type": "x", "status": "True", "reason": hostile, "message": hostile}}},
			}
			if object["items"] = []any{one}; at < len(parts)-1 {
				object = one
			}
		}
		if refuses {
			w.WriteHeader(http.StatusForbidden)
			object = map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": hostile, "reason": hostile, "code": http.StatusForbidden}
		}
		_ = json.NewEncoder(w).Encode(object) // on an error the client fails
	}))
	t.Cleanup(s.Close)
	kubeconfig = filepath.Join(dir, fmt.Sprintf("config-%t", refuses))
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: hub\nclusters: [{name: hub, cluster: {server: %q}}]\ncontexts: [{name: hub, context: {cluster: hub}}]\n", s.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// hostileDatabase is a server of PostgreSQL that rejects each connection with a hostile reason. It returns the URL.
func hostileDatabase(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			startup, rejects := pgproto3.NewBackend(c, c), &pgproto3.ErrorResponse{Severity: "FATAL", Code: "28000", Message: hostile, Hint: hostile}
			if _, err := startup.ReceiveStartupMessage(); err == nil {
				startup.Send(rejects)
				_ = startup.Flush() // on an error the client fails
			}
			_ = c.Close() // it has no data
		}
	})
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		served.Wait()
	})
	return "postgres://hawser@" + l.Addr().String() + "/hawser?sslmode=disable"
}

// hostileCases maps each verb's path to arguments with which it prints texts of peers. BROKER, CONFIG, DATABASE and
// DIR are placeholders.
var hostileCases = map[string][]string{
	"hawser version":               {""},
	"hawser pki init":              {"--dir DIR/pki"},
	"hawser pki issue":             {"--dir DIR/pki --role viewer --name HOSTILE"},
	"hawser demo":                  {"HOSTILE"},
	"hawser install hub":           {"--context hub --kubeconfig CONFIG --address b:1 --image-registry r --image-version v1 --dry-run", "--context hub --kubeconfig CONFIG --address HOSTILE"},
	"hawser install cluster":       {"HOSTILE --hub-context hub --context hub --kubeconfig CONFIG --dry-run"},
	"hawser uninstall hub":         {"--context hub --kubeconfig CONFIG --yes"},
	"hawser uninstall cluster":     {"c1 --hub-context hub --context hub --kubeconfig CONFIG"},
	"hawser get clusters":          {"REMOTE", "REMOTE -o wide", "REMOTE -o json", "REMOTE -o yaml", "REMOTE -o name"},
	"hawser get works":             {"REMOTE", "REMOTE -o wide", "REMOTE -o json", "REMOTE -o yaml", "REMOTE -o name", "HOSTILE REMOTE"},
	"hawser get discrepancies":     {"REMOTE", "REMOTE -o json", "REMOTE -o yaml"},
	"hawser get quotas":            {"REMOTE", "REMOTE -o json"},
	"hawser get denials":           {"REMOTE", "REMOTE -o json", "REMOTE -o yaml"},
	"hawser doctor":                {"REMOTE"},
	"hawser check":                 {"DIR/hostile.yaml", "--all-namespaces --kubeconfig CONFIG"},
	"hawser force-delete work":     {"c1 HOSTILE REMOTE"},
	"hawser unbind cluster":        {"HOSTILE REMOTE", "HOSTILE --works --yes REMOTE", "HOSTILE --works --dry-run REMOTE"},
	"hawser transfer work":         {"c1 HOSTILE --to-source HOSTILE --yes REMOTE"},
	"hawser approve":               {"--cluster HOSTILE --source HOSTILE --all REMOTE"},
	"hawser resolve orphan":        {"HOSTILE --cluster HOSTILE --remove REMOTE"},
	"hawser reject cluster":        {"c1 --context hub --kubeconfig CONFIG"},
	"hawser rotate cluster":        {"c1 --context hub --kubeconfig CONFIG", "HOSTILE --wait --timeout 1s --context hub --kubeconfig CONFIG"},
	"hawser deny":                  {"agent/c1 REMOTE", "HOSTILE REMOTE"},
	"hawser allow":                 {"agent/c1 REMOTE", "HOSTILE REMOTE"},
	"hawser token create":          {"--context hub --kubeconfig CONFIG"},
	"hawser join":                  {"HOSTILE --context hub --kubeconfig CONFIG --broker b:1 --broker-ca DIR/hostile.yaml --token-file DIR/hostile.yaml --image-registry r --image-version v1"},
	"hawser accept":                {"c1 --context hub --kubeconfig CONFIG", "c1 --csr HOSTILE --context hub --kubeconfig CONFIG"},
	"hawser detach":                {"c1 --context hub --kubeconfig CONFIG --timeout 1s"},
	"hawser hub-identity transfer": {"HOSTILE b:1 --context hub --kubeconfig CONFIG"},
	"hawser mqtt acl":              {"HOSTILE"},
	"hawser store check":           {"--dir HOSTILE", "--store-url DATABASE"},
	"hawser store backup":          {"--dir HOSTILE --to HOSTILE"},
	"hawser store restore":         {"--dir HOSTILE --from HOSTILE"},
	"hawser store migrate":         {"--to pebble --data-dir DIR/copy --store-url DATABASE", "--to postgres --data-dir HOSTILE --store-url DATABASE", "--to HOSTILE --data-dir HOSTILE --store-url HOSTILE"},
}

// TestVerbs_PrintNoControlCharacters: for all names and texts of peers, the output of each verb has only
// printable characters and line feeds. No peer's text begins a line.
func TestVerbs_PrintNoControlCharacters(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	t.Setenv("KUBECONFIG", filepath.Join(dir, "none"))
	if err := os.WriteFile(filepath.Join(dir, "hostile.yaml"), []byte("kind: "+hostile), 0o600); err != nil {
		t.Fatal(err)
	}
	brokers := map[bool]string{}
	configs := map[bool]string{}
	for _, fails := range []bool{false, true} {
		brokers[fails], configs[fails] = hostileBroker{fails: fails}.start(t), hostileHub(t, dir, fails)
	}
	db := hostileDatabase(t)
	missing := maps.Clone(hostileCases)
	reported := 0
	eachVerb(newRoot(Env{}), func(c *cobra.Command) {
		path := c.CommandPath()
		cases, has := hostileCases[path]
		delete(missing, path)
		if !has {
			t.Errorf("%s is in no case of this test: add one in which it prints data of others", path)
		}
		for _, args := range cases {
			for _, fails := range []bool{false, true} {
				all := strings.Fields(path)[1:]
				for _, a := range strings.Fields(strings.ReplaceAll(args, "REMOTE", "--broker BROKER --insecure --timeout 5s")) {
					all = append(all, strings.NewReplacer("DATABASE", db, "BROKER", brokers[fails], "CONFIG", configs[fails], "DIR", dir, "HOSTILE", hostile).Replace(a))
				}
				var out, errs bytes.Buffer
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				Main(ctx, Env{Stdout: &out, Stderr: &errs, Now: time.Now, Program: program}, all)
				cancel()
				reported += strings.Count(out.String()+errs.String(), `\u001b`)
				for where, text := range map[string]string{"standard output": out.String(), "standard error": errs.String()} {
					if bad := unclean(text); bad != "" {
						t.Errorf("%q: %s has %s:\n%q", all, where, bad, text)
					}
				}
			}
		}
	})
	for path := range missing {
		t.Errorf("there is no verb %s", path)
	}
	if reported < 30 {
		t.Errorf("hostile texts were printed %d times only", reported)
	}
}
