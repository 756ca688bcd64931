package topic

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/pkg/codec"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Topic{
		"sources/hub1/clusters/cluster1/sourceevents":              {"", SourceEvents, "sources", "clusters", "hub1", "cluster1"},
		"$share/g/sources/hub1/consumers/+/agentevents":            {"g", AgentEvents, "sources", "consumers", "hub1", "+"},
		"sources/+/clusters/cluster1/sourceevents":                 {"", SourceEvents, "sources", "clusters", "+", "cluster1"},
		"sources/hub1/sourcebroadcast":                             {"", SourceBroadcast, "sources", "", "hub1", ""},
		"clusters/+/agentbroadcast":                                {"", AgentBroadcast, "", "clusters", "", "+"},
		"sources/Hub 1.example.com:8/clusters/c_1/sourceevents":    {"", SourceEvents, "sources", "clusters", "Hub 1.example.com:8", "c_1"},
		"$share/Any Group/sources/sourcebroadcast/sourcebroadcast": {"Any Group", SourceBroadcast, "sources", "", "sourcebroadcast", ""},
	} {
		got, err := Parse(text)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
		if got.String() != text {
			t.Errorf("%s came back as %s", text, got)
		}
	}
	for _, text := range []string{
		"", "#", "+", "/", "sources/#", "+/+/+/+/sourceevents", "sources/hub1/clusters/cluster1/spec",
		"sources/hub1/clusters/cluster1/sourceevents/", "/sources/hub1/clusters/cluster1/sourceevents",
		"sources//clusters/cluster1/sourceevents", "sources/hub1/clusters//sourceevents", "sources/hub+/clusters/c/sourceevents",
		"Sources/hub1/clusters/cluster1/sourceevents", "sources/hub1/clusters1/c/sourceevents", "sources/hub1/clusters/c#/sourceevents",
		"sources/hub1/clusters/cluster1/sourcebroadcast", "sources/hub1/agentevents", "sources/hub1/sourceevents/c/agentbroadcast",
		"$share/sources/hub1/sourcebroadcast/x", "$share//sources/hub1/sourcebroadcast", "$share/g", "$share/+/sources/hub1/sourcebroadcast",
		"$share/g/$share/g/sources/hub1/sourcebroadcast", "$SYS/broker/sourcebroadcast", "sources/a\x00b/sourcebroadcast", "sources/\xff/sourcebroadcast",
		"sources/" + strings.Repeat("a", codec.MaxNameBytes+1) + "/sourcebroadcast", strings.Repeat("a", codec.MaxTextBytes) + "/b/sourcebroadcast",
	} {
		if got, err := Parse(text); err == nil {
			t.Errorf("%.80q was taken as %+v", text, got)
		} else if len(err.Error()) > 1000 {
			t.Errorf("%.80q: the error has %d bytes", text, len(err.Error()))
		}
	}
}

func TestFill(t *testing.T) {
	for _, c := range []struct{ filter, source, cluster, want string }{
		{"$share/g/sources/+/clusters/c1/sourceevents", "Hub.1", "c2", "sources/Hub.1/clusters/c1/sourceevents"},
		{"sources/hub1/clusters/+/agentevents", "other", "c1", "sources/hub1/clusters/c1/agentevents"},
		{"sources/+/sourcebroadcast", "hub1", "", "sources/hub1/sourcebroadcast"},
		{"sources/+/clusters/c1/sourceevents", "a/b", "c1", ""},
		{"sources/+/clusters/c1/sourceevents", "", "c1", ""},
		{"sources/+/clusters/c1/sourceevents", "+", "c1", ""},
		{strings.Repeat("w", codec.MaxTextBytes-20) + "/+/sourcebroadcast", strings.Repeat("h", 30), "", ""},
	} {
		f, err := Parse(c.filter)
		if err != nil {
			t.Fatal(err)
		}
		got, err := f.Fill(c.source, c.cluster)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%.80q: %q, %v", c.filter, got, err)
		}
	}
}

func TestTopic_Concrete(t *testing.T) {
	for text, want := range map[string]bool{
		"sources/hub1/clusters/c1/sourceevents": true, "sources/hub1/sourcebroadcast": true,
		"sources/+/clusters/c1/sourceevents": false, "clusters/+/agentbroadcast": false, "$share/g/clusters/c1/agentbroadcast": false,
	} {
		f, err := Parse(text)
		if err != nil || f.Concrete() != want {
			t.Errorf("%s: %v, %v", text, f.Concrete(), err)
		}
	}
}

// TestParse_AnyTopic: a written topic is parsed to the same value, and other texts are rejected.
func TestParse_AnyTopic(t *testing.T) {
	name := rapid.StringMatching(`[a-zA-Z0-9 ._:$é-]{1,10}|\+`)
	word := rapid.StringMatching(`[a-z]{1,8}`)
	rapid.Check(t, func(t *rapid.T) {
		want := Topic{Kind: rapid.SampledFrom([]Kind{SourceEvents, AgentEvents, SourceBroadcast, AgentBroadcast}).Draw(t, "kind")}
		if rapid.Bool().Draw(t, "shared") {
			want.Group = rapid.StringMatching(`[a-zA-Z0-9]{1,5}`).Draw(t, "group")
		}
		if want.Kind != AgentBroadcast {
			want.SourceWord, want.Source = word.Draw(t, "word"), name.Draw(t, "source")
		}
		if want.Kind != SourceBroadcast {
			want.ClusterWord, want.Cluster = word.Draw(t, "word"), name.Draw(t, "cluster")
		}
		got, err := Parse(want.String())
		if err != nil || got != want {
			t.Fatalf("%s (-want +got) %v:\n%s", want, err, cmp.Diff(want, got))
		}
		filled, err := want.Fill("hub1", "c1")
		if err != nil {
			t.Fatal(err)
		}
		f, err := Parse(filled)
		if err != nil || !f.Concrete() || !want.AnySource() && f.Source != want.Source || !want.AnyCluster() && f.Cluster != want.Cluster {
			t.Fatalf("%s became %s, %v", want, filled, err)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add("sources/hub1/clusters/cluster1/sourceevents")
	f.Add("$share/g/sources/+/clusters/+/agentevents")
	f.Add("sources/+/sourcebroadcast")
	f.Add("clusters/c1/agentbroadcast")
	f.Add("$share/g/#")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := Parse(s)
		if err != nil {
			return
		}
		if got.String() != s {
			t.Fatalf("%q came back as %q", s, got)
		}
		if pattern, err := parsePattern(s, got.Kind); err == nil && pattern != got {
			t.Fatalf("%q is %+v in a file, %+v elsewhere", s, pattern, got)
		}
		topic, err := got.Fill("hub1", "c1")
		if err != nil {
			return // the topic is too long
		}
		if filled, err := Parse(topic); err != nil || !filled.Concrete() {
			t.Fatalf("%q became %q, %v", s, topic, err)
		}
	})
}
