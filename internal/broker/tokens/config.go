package tokens

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/hawser-io/hawser/internal/identity"
)

// Config says which tokens are taken, and whose they are.
type Config struct {
	// Audiences are those of tokens that are taken, as hawser. A token that is for none of them is refused.
	Audiences []string `json:"audiences,omitempty"`
	// HubAudience takes also tokens for the API of the hub itself, as clusteradm prints them: for its
	// issuer, or what hub-source says. What its --api-audiences are else, audiences can name.
	// Whoever gets hold of one of those may use it at the hub too.
	HubAudience bool `json:"hubAudience,omitempty"`
	// Mapping says which accounts of the hub are whom; the first rule that matches counts. An
	// account without a rule may do nothing.
	Mapping []Rule `json:"mapping,omitempty"`
}

// Rule maps an account of the hub to an identity.
type Rule struct {
	// User is a user name of the hub, as system:serviceaccount:<namespace>:<name>. A rule has this or group.
	User string `json:"user,omitempty"`
	// Group is a group of the hub, as system:bootstrappers:managedcluster. A rule has this or user.
	Group string `json:"group,omitempty"`
	// Role is bootstrap, source, operator or viewer. Required. A token never makes an agent.
	Role identity.Role `json:"role"`
	// Name is the source id of a source, any name of an operator or viewer. A bootstrap account
	// may go without: it then has that of its user.
	Name string `json:"name,omitempty"`
}

// Enabled reports whether anything is said about tokens.
func (c Config) Enabled() bool { return len(c.Audiences) > 0 || c.HubAudience || len(c.Mapping) > 0 }

// allAudiences are groups that each account of a hub is in.
var allAudiences = []string{"system:authenticated", "system:unauthenticated", "system:serviceaccounts"}

// Validate says what could never work, or would let everybody in.
func (c Config) Validate() error {
	switch {
	case !c.Enabled():
		return nil
	case len(c.Audiences) == 0 && !c.HubAudience:
		return errors.New("audiences is empty: name that of the tokens, as hawser")
	case slices.Contains(c.Audiences, ""):
		return errors.New("an audience is empty: leave it out")
	case len(c.Mapping) == 0:
		return errors.New("mapping is empty: name the accounts, for without a rule none may do anything")
	}
	for i, r := range c.Mapping {
		if err := r.validate(); err != nil {
			return fmt.Errorf("rule %d: %w", i+1, err)
		}
	}
	return nil
}

func (r Rule) validate() error {
	switch {
	case (r.User == "") == (r.Group == ""):
		return errors.New("set exactly one of user and group")
	case slices.Contains(allAudiences, r.Group):
		return fmt.Errorf("every account of the hub is in group %s: use another one", r.Group)
	case r.Role == identity.Agent:
		return errors.New("a token makes no agent: that is known by its certificate; use bootstrap for who asks that a cluster joins")
	case r.Role != identity.Bootstrap && r.Role != identity.Source && r.Role != identity.Operator && r.Role != identity.Viewer:
		return fmt.Errorf("role is %q, use bootstrap, source, operator or viewer", r.Role)
	case r.Name == "" && r.Role != identity.Bootstrap:
		return fmt.Errorf("name is empty, set the %s's name", r.Role)
	}
	return nil
}

// identify returns who an account is, if a rule says so.
func (c Config) identify(user string, groups []string) (identity.Identity, bool) {
	for _, r := range c.Mapping {
		if r.User != "" && r.User == user || r.Group != "" && slices.Contains(groups, r.Group) {
			return identity.Identity{Role: r.Role, Name: cmp.Or(r.Name, user)}, true
		}
	}
	return identity.Identity{}, false
}
