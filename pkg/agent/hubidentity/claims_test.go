package hubidentity

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
)

var now = time.Unix(1_800_000_000, 0).UTC()

func through(broker, epoch string, roots ...string) BrokerRef {
	return BrokerRef{Cluster: "cluster1", Broker: broker, Roots: roots, StoreID: epoch}
}

// claimsFixture has one hub, claimed through a:8090 with the store e1, verified by ca1.
func claimsFixture() Claims {
	return Claims{appliedwork.HubHash("hub1"): {Identity: "hub1", Since: now, BrokerRef: through("a:8090", "e1", "ca1")}}
}

func TestClaims_Decide(t *testing.T) {
	for name, c := range map[string]struct {
		claims   Claims
		identity string
		t        BrokerRef
		trusted  []string
		// admitted is the claim afterwards, nil after a refusal. against is the identity of the conflicting
		// claim.
		admitted *BrokerRef
		against  string
	}{
		"first claim":                               {Claims{}, "hub1", through("a:8090", "e1", "ca1"), nil, ptr(through("a:8090", "e1", "ca1")), ""},
		"first claim, OCM broker":                   {Claims{}, "hub1", through("a:8090", "", "ca1"), nil, ptr(through("a:8090", "", "ca1")), ""},
		"same name":                                 {claimsFixture(), "hub1", through("a:8090", "e1", "ca1"), nil, ptr(through("a:8090", "e1", "ca1")), ""},
		"new name, same store":                      {claimsFixture(), "hub1", through("b:8090", "e1", "ca1"), nil, ptr(through("b:8090", "e1", "ca1")), ""},
		"same name, other store":                    {claimsFixture(), "hub1", through("a:8090", "e2", "ca1"), nil, ptr(through("a:8090", "e2", "ca1")), ""},
		"same name, a broker without a store ID":    {claimsFixture(), "hub1", through("a:8090", "", "ca1"), nil, ptr(through("a:8090", "e1", "ca1")), ""},
		"other name, other store":                   {claimsFixture(), "hub1", through("b:8090", "e2", "ca1"), nil, nil, "hub1"},
		"other name, a broker without a store ID":   {claimsFixture(), "hub1", through("b:8090", "", "ca1"), nil, nil, "hub1"},
		"other CA":                                  {claimsFixture(), "hub1", through("a:8090", "e1", "ca2"), nil, nil, "hub1"},
		"other CA that knows the store":             {claimsFixture(), "hub1", through("b:8090", "e1", "ca2"), []string{"ca1", "ca2"}, nil, "hub1"},
		"other CA, other store":                     {claimsFixture(), "hub1", through("a:8090", "e2", "ca2"), []string{"ca1", "ca2"}, nil, "hub1"},
		"no TLS any more":                           {claimsFixture(), "hub1", through("a:8090", "e1"), nil, nil, "hub1"},
		"CA that is being replaced":                 {claimsFixture(), "hub1", through("a:8090", "e1", "ca2"), []string{"ca1", "ca2"}, ptr(through("a:8090", "e1", "ca1", "ca2")), ""},
		"two chains":                                {claimsFixture(), "hub1", through("a:8090", "e1", "ca0", "ca1"), nil, ptr(through("a:8090", "e1", "ca0", "ca1")), ""},
		"explicit flag changed":                     {claimsFixture(), "hub2", through("a:8090", "e1", "ca1"), nil, nil, "hub1"},
		"explicit flag changed, new name":           {claimsFixture(), "hub2", through("b:8090", "e1", "ca1"), nil, nil, "hub1"},
		"explicit flag changed when the store went": {claimsFixture(), "hub2", through("a:8090", "e2", "ca1"), nil, nil, "hub1"},
		"two hubs side by side":                     {claimsFixture(), "hub2", through("b:8090", "e2", "ca2"), nil, ptr(through("b:8090", "e2", "ca2")), ""},
		"two hubs of one CA side by side":           {claimsFixture(), "hub2", through("b:8090", "e2", "ca1"), nil, ptr(through("b:8090", "e2", "ca1")), ""},
		"the same cluster under a second name":      {claimsFixture(), "hub2", BrokerRef{Cluster: "cluster2", Broker: "a:8090", Roots: []string{"ca1"}, StoreID: "e1"}, nil, &BrokerRef{Cluster: "cluster2", Broker: "a:8090", Roots: []string{"ca1"}, StoreID: "e1"}, ""},
		"a second hub that reports this store ID":   {claimsFixture().with("x", Claim{Identity: "hub2", BrokerRef: through("b:8090", "e2", "ca2")}), "hub1", through("a:8090", "e2", "ca1"), nil, nil, "hub2"},
	} {
		t.Run(name, func(t *testing.T) {
			next, changed, err := c.claims.Decide(c.identity, c.t, c.trusted, now)
			if c.admitted != nil {
				got := next[appliedwork.HubHash(c.identity)]
				if err != nil || got.Identity != c.identity || got.Cluster != c.admitted.Cluster || !got.same(*c.admitted) {
					t.Fatalf("got %+v, %v", got, err)
				}
				if again, changed, err := next.Decide(c.identity, c.t, c.trusted, now); changed || err != nil {
					t.Errorf("the second claim: %+v, %t, %v", again, changed, err)
				}
				return
			}
			var refused *RefusedError
			if !errors.As(err, &refused) || !changed || refused.Claim.Identity != c.against || !strings.Contains(err.Error(), "hawser hub-identity transfer") {
				t.Fatalf("got %+v, %t, %v", next, changed, err)
			}
			stands := next[appliedwork.HubHash(c.against)]
			if c.against == "hub2" {
				stands = next["x"]
			}
			if len(stands.Rejected) != 1 || stands.Rejected[0].Identity != c.identity || !stands.Rejected[0].same(c.t) {
				t.Errorf("it is not listed: %+v", stands)
			}
			if len(next) != len(c.claims) {
				t.Errorf("%d claims, had %d", len(next), len(c.claims))
			}
			if _, changed, err := next.Decide(c.identity, c.t, c.trusted, now); changed || err == nil {
				t.Errorf("the second claim: %t, %v", changed, err)
			}
		})
	}
}

func ptr(t BrokerRef) *BrokerRef { return &t }

// When a CA is replaced in three steps, the claim is updated at each step.
func TestClaims_CAIsReplaced(t *testing.T) {
	b := claimsFixture()
	for _, step := range []struct {
		root    string
		trusted []string
	}{{"ca1", []string{"ca1", "ca2"}}, {"ca2", []string{"ca1", "ca2"}}, {"ca2", []string{"ca2"}}} {
		var err error
		if b, _, err = b.Decide("hub1", through("a:8090", "e1", step.root), step.trusted, now); err != nil {
			t.Fatal(err)
		}
	}
	if got := b[appliedwork.HubHash("hub1")].Roots; !slices.Equal(got, []string{"ca2"}) {
		t.Fatalf("got %v", got)
	}
}

func TestClaims_RefusedAreBounded(t *testing.T) {
	b := claimsFixture()
	for i := range 3 * maxRefused {
		b, _, _ = b.Decide("hub1", through("b:8090", strings.Repeat("e", i+2), "ca1"), nil, now)
	}
	if got := b[appliedwork.HubHash("hub1")].Rejected; len(got) != maxRefused || got[maxRefused-1].StoreID != strings.Repeat("e", 3*maxRefused+1) {
		t.Fatalf("got %d, the last %+v", len(got), got[len(got)-1])
	}
}

func TestClaims_Identify(t *testing.T) {
	own, other := appliedwork.HubHash("a:8090"), appliedwork.HubHash("gone:8090")
	two := claimsFixture().with(appliedwork.HubHash("hub2"), Claim{Identity: "hub2", BrokerRef: through("b:8090", "e2", "ca2")})
	foreign := BrokerRef{Cluster: "cluster9", Broker: "a:8090"}
	for name, c := range map[string]struct {
		claims   Claims
		broker   string
		records  map[string]int
		identity string
		certain  bool
	}{
		"nothing is written down, nothing is there":       {Claims{}, "a:8090", nil, "a:8090", true},
		"nothing is written down, it has works":           {Claims{}, "a:8090", map[string]int{own: 2, other: 3}, "a:8090", true},
		"nothing is written down, only another has works": {Claims{}, "a:8090", map[string]int{other: 3}, "", false},
		"the other one is claimed for another cluster":    {Claims{other: {Identity: "gone:8090", BrokerRef: foreign}}, "b:8090", map[string]int{other: 3}, "b:8090", true},
		"it was claimed through this address":             {two, "a:8090", map[string]int{other: 3}, "hub1", true},
		"another address":                                 {claimsFixture(), "c:8090", nil, "hub1", false},
		"another address, and it has works of before":     {claimsFixture(), "c:8090", map[string]int{appliedwork.HubHash("c:8090"): 1}, "c:8090", true},
		"another address, and several hubs":               {two, "c:8090", nil, "", false},
	} {
		got, certain, err := c.claims.Identify("cluster1", c.broker, c.records)
		var ambiguous *AmbiguousError
		if got != c.identity || certain != c.certain || (c.identity == "") != errors.As(err, &ambiguous) {
			t.Errorf("%s: got %q, %t, %v", name, got, certain, err)
		}
		if err != nil && !strings.Contains(err.Error(), "--hub-identity") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSplit(t *testing.T) {
	hash := appliedwork.HubHash("hub1")
	if h, w, ok := Split(appliedwork.Name(hash, "a-b")); !ok || h != hash || w != "a-b" {
		t.Errorf("got %q %q %t", h, w, ok)
	}
	for _, bad := range []string{"", hash, hash + "-", "x" + hash[1:] + "-a", hash + "a"} {
		if _, _, ok := Split(bad); ok {
			t.Errorf("%q is taken", bad)
		}
	}
}

// Any content of the ConfigMap is rejected, or written unchanged.
func FuzzClaims(f *testing.F) {
	data, err := claimsFixture().data()
	if err != nil {
		f.Fatal(err)
	}
	for key, value := range data {
		f.Add(key, value.(string))
	}
	f.Add("x", `{"identity":"hub1"}`)
	f.Add(appliedwork.HubHash("hub1"), `{"identity":"hub1","refused":[{"roots":null}],"since":"x"}`)
	f.Fuzz(func(t *testing.T, key, value string) {
		b, err := parseClaims(map[string]string{key: value})
		if err != nil {
			return
		}
		if len(b) != 1 || appliedwork.HubHash(b[key].Identity) != key {
			t.Fatalf("%q is %+v", value, b)
		}
		again := map[string]string{}
		data, err := b.data()
		if err != nil {
			return // JSON cannot hold this time
		}
		for k, v := range data {
			again[k] = v.(string)
		}
		if _, err := parseClaims(again); err != nil {
			t.Fatalf("%q is written as %q: %v", value, again, err)
		}
		_, _, _ = b.Decide(b[key].Identity, through("a:8090", "e1", "ca1"), nil, now)
	})
}
