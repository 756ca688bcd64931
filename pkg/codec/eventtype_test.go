package codec

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
)

func TestC9_TypeGrammar(t *testing.T) {
	works := DataType{Group: "io.open-cluster-management.works", Version: "v1alpha1", Resource: "manifestbundles"}
	for _, c := range []struct {
		text string
		want EventType
		ok   bool
	}{
		{"io.open-cluster-management.works.v1alpha1.manifestbundles.spec.create_request", EventType{works, Spec, CreateRequest}, true},
		{"io.open-cluster-management.works.v1alpha1.manifestbundles.status.resync_request", EventType{works, Status, ResyncRequest}, true},
		{"g.v1.r.spec.made_up", EventType{DataType{"g", "v1", "r"}, Spec, "made_up"}, true},
		{"v1.r.spec.create_request", EventType{}, false},
		{"r.spec.create_request", EventType{}, false},
		{"", EventType{}, false},
		{"g.v1.r.foo.create_request", EventType{}, false},
		{"g.v1.r.Spec.create_request", EventType{}, false},
		{"g.v1.r.spec.", EventType{}, false},
		{"g.v1..spec.create_request", EventType{}, false},
		{"g..r.spec.create_request", EventType{}, false},
		{".v1.r.spec.create_request", EventType{}, false},
		{".g.v1.r.spec.create_request", EventType{}, false},
		{"g..g.v1.r.spec.create_request", EventType{}, false},
		{TypeHeartbeat, EventType{}, false},
		{TypeCheckpoint, EventType{}, false},
	} {
		got, err := ParseEventType(c.text)
		if (err == nil) != c.ok || got != c.want {
			t.Errorf("ParseEventType(%q) = %+v, %v", c.text, got, err)
		}
		var a *AttributeError
		if err != nil && (!errors.As(err, &a) || a.Attribute != "type") {
			t.Errorf("ParseEventType(%q): error %v does not name the attribute type", c.text, err)
		}
		if err == nil && got.String() != c.text {
			t.Errorf("%q came back as %q", c.text, got.String())
		}
	}
}

func TestParseDataType_FromTheRight(t *testing.T) {
	got, err := ParseDataType("io.open-cluster-management.works.v1alpha1.manifestbundles")
	if err != nil || got != ManifestBundles {
		t.Fatalf("got %+v, %v", got, err)
	}
	for _, bad := range []string{"", "a", "a.b", "a.b.", "a..c", ".b.c", "a..b.c", "..a.b.c"} {
		if d, err := ParseDataType(bad); err == nil {
			t.Errorf("ParseDataType(%q) = %+v, want an error", bad, d)
		}
	}
}

func TestEventType_RoundTrip(t *testing.T) {
	token := rapid.StringMatching(`[a-z0-9_-]{1,8}`)
	rapid.Check(t, func(t *rapid.T) {
		want := EventType{
			DataType: DataType{
				Group:    rapid.StringMatching(`[a-z-]{1,5}(\.[a-z-]{1,5}){0,3}`).Draw(t, "group"),
				Version:  token.Draw(t, "version"),
				Resource: token.Draw(t, "resource"),
			},
			Subresource: rapid.SampledFrom([]Subresource{Spec, Status}).Draw(t, "subresource"),
			Action:      Action(token.Draw(t, "action")),
		}
		got, err := ParseEventType(want.String())
		if err != nil || got != want {
			t.Fatalf("%q parsed as %+v, %v", want.String(), got, err)
		}
	})
}

func TestLookup_ServesWorksOnly(t *testing.T) {
	row, ok := Lookup(ManifestBundles)
	if !ok || row.DataType != ManifestBundles || !row.Durable || row.Version != VersionInteger {
		t.Fatalf("row of works: %+v, %v", row, ok)
	}
	if !row.SpecFrom.Has(FromSource) || row.SpecFrom.Has(FromAgent) || !row.StatusFrom.Has(FromAgent) || row.StatusFrom.Has(FromSource) || row.Owner != FromSource {
		t.Errorf("directions of works: %+v", row)
	}
	if _, ok := Lookup(DataType{"certificates.k8s.io", "v1", "certificatesigningrequests"}); ok {
		t.Error("a type without a row is served")
	}
	if Senders(0).Has(0) || FromSource.Has(FromSource|FromAgent) {
		t.Error("Has is true for a client kind that is not in the set")
	}
}
