package mqttacl

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-io/hawser/pkg/transport/mqtt/topic"
)

var account = Account{Partition: "aws", Region: "eu-west-1", ID: "123456789012"}

func principal(name string) Principal {
	return Principal{Name: name, User: "u:" + name, ClientID: "id-" + name}
}

// rulesOf returns the rules of a source and two clusters.
func rulesOf(t *testing.T, l Layout) []Rules {
	t.Helper()
	s, err := l.OfSource(principal(l.Source))
	if err != nil {
		t.Fatal(err)
	}
	all := []Rules{s}
	for _, c := range []string{"one", "two"} {
		r, err := l.OfAgent(principal(c))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// decide evaluates a policy as AWS IoT Core documents it: an explicit denial wins, and a right that no
// statement allows is denied.
func decide(t *testing.T, document, action, resource string) bool {
	t.Helper()
	var p awsPolicy
	if err := json.Unmarshal([]byte(document), &p); err != nil {
		t.Fatal(err)
	}
	allowed := false
	for _, s := range p.Statement {
		about := slices.ContainsFunc(s.Action, func(a string) bool { return like(a, action) })
		matches := func(r string) bool { return like(r, resource) }
		switch {
		case !about:
		case s.Effect == "Deny" && !slices.ContainsFunc(s.NotResource, matches):
			return false
		case s.Effect == "Allow" && slices.ContainsFunc(s.Resource, matches):
			allowed = true
		}
	}
	return allowed
}

func like(pattern, text string) bool {
	return regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*") + "$").MatchString(text)
}

func arn(kind, name string) string { return "arn:aws:iot:eu-west-1:123456789012:" + kind + "/" + name }

func TestAWS_EachClientHasItsOwn(t *testing.T) {
	policies, err := AWS(rulesOf(t, DefaultLayout("hub")), account, "p")
	if err != nil {
		t.Fatal(err)
	}
	documents := map[string]string{}
	for _, p := range policies {
		documents[p.PolicyName] = p.PolicyDocument
	}
	type query struct{ principal, action, resource string }
	for a, want := range map[query]bool{
		{"p-one", "iot:Connect", arn("client", "id-one")}:                                         true,
		{"p-one", "iot:Connect", arn("client", "id-two")}:                                         false,
		{"p-one", "iot:Publish", arn("topic", "sources/hub/clusters/one/agentevents")}:            true,
		{"p-one", "iot:Publish", arn("topic", "sources/hub/clusters/two/agentevents")}:            false,
		{"p-one", "iot:Publish", arn("topic", "sources/hub/clusters/one/sourceevents")}:           false,
		{"p-one", "iot:Subscribe", arn("topicfilter", "sources/hub/clusters/one/sourceevents")}:   true,
		{"p-one", "iot:Subscribe", arn("topicfilter", "sources/hub/clusters/two/sourceevents")}:   false,
		{"p-one", "iot:Subscribe", arn("topicfilter", "sources/hub/clusters/+/sourceevents")}:     false,
		{"p-one", "iot:Subscribe", arn("topicfilter", "#")}:                                       false,
		{"p-one", "iot:Subscribe", arn("topicfilter", "sources/+/sourcebroadcast")}:               true,
		{"p-one", "iot:Receive", arn("topic", "sources/hub/sourcebroadcast")}:                     true,
		{"p-one", "iot:Receive", arn("topic", "sources/hub/clusters/two/sourceevents")}:           false,
		{"p-hub", "iot:Publish", arn("topic", "sources/hub/clusters/two/sourceevents")}:           true,
		{"p-hub", "iot:Publish", arn("topic", "sources/other/clusters/two/sourceevents")}:         false,
		{"p-hub", "iot:Subscribe", arn("topicfilter", "sources/hub/clusters/+/agentevents")}:      true,
		{"p-hub", "iot:Receive", arn("topic", "clusters/two/agentbroadcast")}:                     true,
		{"p-hub", "iot:Connect", arn("client", "id-one")}:                                         false,
		{"p-hub", "iot:Receive", "arn:aws:iot:eu-west-1:123456789012:topic/$aws/things/x/shadow"}: false,
	} {
		if got := decide(t, documents[a.principal], a.action, a.resource); got != want {
			t.Errorf("%s %s %s: allowed is %t, want %t", a.principal, a.action, a.resource, got, want)
		}
	}
}

// A certificate often still has a policy that allows everything, from an earlier experiment.
func TestAWS_DenyOverridesOtherPolicies(t *testing.T) {
	policies, err := AWS(rulesOf(t, DefaultLayout("hub")), account, "p")
	if err != nil {
		t.Fatal(err)
	}
	both := strings.Replace(policies[1].PolicyDocument, `"Statement":[`, `"Statement":[{"Effect":"Allow","Action":["iot:*"],"Resource":["*"]},`, 1)
	for action, resource := range map[string]string{
		"iot:Connect": arn("client", "id-two"), "iot:Publish": arn("topic", "sources/hub/clusters/two/agentevents"),
		"iot:Subscribe": arn("topicfilter", "#"), "iot:Receive": arn("topic", "sources/hub/clusters/two/sourceevents"),
	} {
		if decide(t, both, action, resource) {
			t.Errorf("%s %s is allowed", action, resource)
		}
	}
}

// The longest names that Kubernetes allows fit into a policy.
func TestAWS_Size(t *testing.T) {
	name := strings.Repeat("x", 63)
	r, err := DefaultLayout("hub").OfAgent(Principal{Name: name, User: name, ClientID: name})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := AWS([]Rules{r}, account, "p"); err != nil {
		t.Error(err)
	}
	long := DefaultLayout("hub")
	for _, s := range []*string{&long.Topics.SourceEvents, &long.Topics.AgentEvents} {
		*s = strings.Replace(*s, "sources/", strings.Repeat("w", 300)+"/", 1)
	}
	if r, err = long.OfAgent(principal("one")); err != nil {
		t.Fatal(err)
	}
	if _, err := AWS([]Rules{r}, account, "p"); err == nil || !strings.Contains(err.Error(), "at most 2048") {
		t.Errorf("got %v", err)
	}
}

func TestEMQX_EndsInDeny(t *testing.T) {
	text := EMQX(rulesOf(t, DefaultLayout("hub")))
	if !strings.HasSuffix(text, "\n{deny, all}.\n") {
		t.Errorf("ends with %q", text[len(text)-40:])
	}
	if n := strings.Count(text, "{allow, {'and', [{username, "); n != 6 || strings.Count(text, "{clientid, ") != n {
		t.Errorf("%d rules bind user and client id, want 6:\n%s", n, text)
	}
}

func TestRules_RejectInvalidRules(t *testing.T) {
	l := DefaultLayout("hub")
	for _, name := range []string{"", "a b", "a\nuser b", `a"`, "+", "#", "a*", "a\\", "ä", "%u", "$x"} {
		for what, p := range map[string]Principal{"user": {Name: "one", User: name, ClientID: "x"}, "client id": {Name: "one", User: "x", ClientID: name}} {
			if _, err := l.OfAgent(p); err == nil {
				t.Errorf("%s %q was taken", what, name)
			}
		}
	}
	for _, cluster := range []string{"", "a/b", "+", "#", "a b"} {
		if _, err := l.OfAgent(Principal{Name: cluster, User: "u", ClientID: "c"}); err == nil {
			t.Errorf("cluster %q was taken", cluster)
		}
	}
	if _, err := (Layout{Source: "hub", Topics: topic.Set{SourceEvents: "sources/+/clusters/+/sourceevents", AgentEvents: "sources/+/clusters/+/agentevents"}}).OfSource(principal("hub")); err == nil {
		t.Error("a source of any name was taken")
	}
}

func TestRules_WithoutBroadcasts(t *testing.T) {
	l := Layout{Source: "maestro", Topics: topic.Set{
		SourceEvents: "sources/maestro/consumers/+/sourceevents", AgentEvents: "$share/g/sources/maestro/consumers/+/agentevents",
	}}
	got := rulesOf(t, l)
	want := "[[sources/maestro/consumers/+/sourceevents] [sources/maestro/consumers/+/agentevents]" +
		" [sources/maestro/consumers/one/agentevents] [sources/maestro/consumers/one/sourceevents]]"
	if s := fmt.Sprint([][]string{got[0].Publish, got[0].Subscribe, got[1].Publish, got[1].Subscribe}); s != want {
		t.Errorf("got %s\nwant %s", s, want)
	}
}
