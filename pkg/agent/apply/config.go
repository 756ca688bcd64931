package apply

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// Config is the part of spec.manifestConfigs that applies to one manifest. Each part comes from the first
// matching entry that has it.
type Config struct {
	// Strategy is the update strategy of the object; its Type is never empty.
	Strategy workv1.UpdateStrategy
	// Feedback are the rules of the reported values; may be empty.
	Feedback []workv1.FeedbackRule
	// Conditions are the rules of conditions derived from the object; may be empty.
	Conditions []workv1.ConditionRule
}

func configOf(options []workv1.ManifestConfigOption, id workv1.ResourceIdentifier) Config {
	c := Config{Strategy: workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeUpdate}}
	strategy := false
	for _, o := range options {
		if !matches(o.ResourceIdentifier, id) {
			continue
		}
		if !strategy && o.UpdateStrategy != nil && o.UpdateStrategy.Type != "" {
			strategy, c.Strategy = true, *o.UpdateStrategy
		}
		if len(c.Feedback) == 0 {
			c.Feedback = o.FeedbackRules
		}
		if len(c.Conditions) == 0 {
			c.Conditions = o.ConditionRules
		}
	}
	return c
}

// refuse returns why the object is not applied. The hub's CRD admits no other strategy, but works can have
// another origin.
func (c Config) refuse() error {
	switch t := c.Strategy.Type; t {
	case workv1.UpdateStrategyTypeUpdate, workv1.UpdateStrategyTypeCreateOnly, workv1.UpdateStrategyTypeReadOnly:
		return nil
	case workv1.UpdateStrategyTypeServerSideApply:
		return refuseServerSideApply(c.Strategy.ServerSideApply)
	default:
		return permanent{fmt.Errorf("update strategy %q is not known: the object is left as it is; use Update, CreateOnly, ReadOnly or ServerSideApply", t)}
	}
}

// hashOf returns the hash of a manifest and its config.
func hashOf(raw []byte, c Config) [sha256.Size]byte {
	h := sha256.New()
	h.Write(raw)
	if err := json.NewEncoder(h).Encode(c); err != nil {
		// Texts, numbers and lists of them always marshal.
		panic(fmt.Sprintf("marshal a manifest config: %v", err))
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// matches compares group and resource exactly, namespace and name as patterns.
func matches(pattern, id workv1.ResourceIdentifier) bool {
	return pattern.Group == id.Group && pattern.Resource == id.Resource && kubeclient.Matches(pattern.Namespace, id.Namespace) && kubeclient.Matches(pattern.Name, id.Name)
}
