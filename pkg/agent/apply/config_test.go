package apply

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	workv1 "open-cluster-management.io/api/work/v1"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

// Each part comes from the first matching entry that has it.
func TestLoad_SelectsEachConfigPartSeparately(t *testing.T) {
	feedback := []workv1.FeedbackRule{{Type: workv1.WellKnownStatusType}}
	conditions := []workv1.ConditionRule{{Type: workv1.WellKnownConditionsType, Condition: "Complete"}}
	entry := func(name string, change func(*workv1.ManifestConfigOption)) workv1.ManifestConfigOption {
		o := workv1.ManifestConfigOption{ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: "default", Name: name}}
		change(&o)
		return o
	}
	s := work(simpleConfigMap)
	s.ManifestConfigs = []workv1.ManifestConfigOption{
		entry("other", func(o *workv1.ManifestConfigOption) {
			o.UpdateStrategy = &workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeUpdate}
		}),
		entry("a*", func(o *workv1.ManifestConfigOption) { o.ConditionRules = conditions }),
		entry("*", func(o *workv1.ManifestConfigOption) {
			o.UpdateStrategy = &workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeReadOnly}
		}),
		entry("a", func(o *workv1.ManifestConfigOption) {
			o.UpdateStrategy = &workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeCreateOnly}
			o.FeedbackRules = feedback
			o.ConditionRules = []workv1.ConditionRule{{Type: workv1.WellKnownConditionsType, Condition: "Late"}}
		}),
	}
	want := Config{Strategy: workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeReadOnly}, Feedback: feedback, Conditions: conditions}
	if d := cmp.Diff(want, Load(t.Context(), clustertest.New(), s)[0].Config); d != "" {
		t.Fatalf("(-want +got)\n%s", d)
	}
}

// The scrape type changes neither the handling of a manifest nor the number of reads: watches are always used.
func TestLoad_ScrapeTypeChangesNothing(t *testing.T) {
	s := work(simpleConfigMap)
	s.ManifestConfigs = []workv1.ManifestConfigOption{{
		ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: "default", Name: "a"},
		FeedbackRules:      []workv1.FeedbackRule{{Type: workv1.WellKnownStatusType}},
	}}
	simple := Load(t.Context(), clustertest.New(), s)[0]
	for _, typ := range []workv1.FeedbackScrapeType{workv1.FeedbackPollType, workv1.FeedbackWatchType} {
		s.ManifestConfigs[0].FeedbackScrapeType = typ
		m := Load(t.Context(), clustertest.New(), s)[0]
		if d := cmp.Diff(simple.Config, m.Config); d != "" || simple.hash != m.hash {
			t.Errorf("%s makes a difference\n%s", typ, d)
		}
	}
}

// A pattern made from a text by replacing parts with stars matches that text. With a prefix or suffix, the text
// matches only if the pattern has a star there.
func TestWildcard_StandsForAnyPart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var text, pattern string
		parts := rapid.SliceOfN(rapid.StringMatching(`[a-c.]{0,3}`), 1, 5).Draw(t, "parts")
		for _, p := range parts {
			text += p
			if rapid.Bool().Draw(t, "star") {
				p = "*"
			}
			pattern += p
		}
		before, behind := strings.HasPrefix(pattern, "*"), strings.HasSuffix(pattern, "*")
		if !kubeclient.Matches(pattern, text) {
			t.Fatalf("%q does not match %q", pattern, text)
		}
		if kubeclient.Matches(pattern, "x"+text) != before || kubeclient.Matches(pattern, text+"x") != behind {
			t.Fatalf("%q: %t before %q, %t behind", pattern, kubeclient.Matches(pattern, "x"+text), text, kubeclient.Matches(pattern, text+"x"))
		}
	})
}
