package main

import (
	"bytes"
	"encoding/base64"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/hawser-io/hawser/pkg/agent/workpolicy"
)

// The policy file in deploy/ applies to every hub.
func TestPolicy_LoadsFilesOfDeploy(t *testing.T) {
	for hub, denied := range map[string]string{"hub1": "limitranges", "hub2": "hawser"} {
		var got workpolicy.Rules
		p := &policyFile{path: "../../deploy/agent/policy.yaml", hub: hub, follow: func(r workpolicy.Rules) { got = r }}
		if changed, err := p.read(); err != nil || !changed {
			t.Fatalf("%s: %t, %v", hub, changed, err)
		}
		if len(got.Deny) == 0 || !strings.Contains(strings.Join(append(got.Deny[0].Namespaces, got.Deny[0].Resources...), " "), denied) {
			t.Errorf("%s: got %+v", hub, got)
		}
	}
}

// A changed file applies from then on; an invalid one changes nothing.
func TestPolicy_IsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var followed []workpolicy.Rules
	var log bytes.Buffer
	p := &policyFile{path: path, hub: "hub1", follow: func(r workpolicy.Rules) { followed = append(followed, r) }, log: slog.New(slog.NewTextHandler(&log, nil))}
	if _, err := p.read(); err == nil || !strings.Contains(err.Error(), "policy-file: open") {
		t.Fatalf("no file: %v", err)
	}
	write("hubs: {hub1: {deny: [{resources: [secrets]}]}}")
	if changed, err := p.read(); err != nil || !changed {
		t.Fatalf("%t, %v", changed, err)
	}
	p.look(t.Context())
	if len(followed) != 1 || log.Len() > 0 {
		t.Fatalf("%d rules of a file that did not change: %s", len(followed), log.String())
	}
	for text, want := range map[string]string{
		"hubs: {hub1: {deny: []}}": "is an empty list",
		"hubs: {hub2: {}}":         `no rules for hub "hub1"`,
		"":                         "the file has no value",
	} {
		write(text)
		log.Reset()
		p.look(t.Context())
		p.look(t.Context())
		if err := p.ready(); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "the previous policy stays in force") {
			t.Errorf("%q: %v", text, err)
		}
		if len(followed) != 1 || strings.Count(log.String(), "level=ERROR") != 1 {
			t.Errorf("%q: %d rules, log %s", text, len(followed), log.String())
		}
	}
	write("hubs: {'*': {}}")
	p.look(t.Context())
	if d := cmp.Diff([]workpolicy.Rules{{Deny: []workpolicy.Rule{{Resources: []string{"secrets"}}}}, {}}, followed); d != "" || p.ready() != nil {
		t.Errorf("%v: %s", p.ready(), d)
	}
	if err := (*policyFile)(nil).ready(); err != nil {
		t.Error(err)
	}
}

func TestAccountOf(t *testing.T) {
	token := func(claims string) string {
		return "head." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".signature"
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token(`{"sub":"system:serviceaccount:in:file"}`)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		config rest.Config
		want   types.NamespacedName
	}{
		"service account":  {rest.Config{BearerToken: token(`{"sub":"system:serviceaccount:ns:name","aud":[]}`)}, types.NamespacedName{Namespace: "ns", Name: "name"}},
		"of the pod":       {rest.Config{BearerToken: "old", BearerTokenFile: file}, types.NamespacedName{Namespace: "in", Name: "file"}},
		"another user":     {rest.Config{BearerToken: token(`{"sub":"alice"}`)}, types.NamespacedName{}},
		"half":             {rest.Config{BearerToken: token(`{"sub":"system:serviceaccount:ns"}`)}, types.NamespacedName{}},
		"no claims":        {rest.Config{BearerToken: "a.b.c"}, types.NamespacedName{}},
		"no token of that": {rest.Config{BearerToken: "abc"}, types.NamespacedName{}},
		"a certificate":    {rest.Config{}, types.NamespacedName{}},
	} {
		if got := accountOf(&c.config); got != c.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
