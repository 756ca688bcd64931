package tokens

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/hawser-io/hawser/internal/identity"
)

// Config is the configuration of accepted tokens and their identities.
type Config struct {
	// Audiences are the accepted audiences of tokens, for example hawser. A token without one of them is rejected.
	Audiences []string `json:"audiences,omitempty"`
	// HubAudience also accepts tokens for the API of the hub itself, as clusteradm prints them. Their audience is
	// the issuer, or what hub-source reports; other values of the hub's --api-audiences belong into audiences. A
	// stolen token of this kind can be used at the hub too.
	HubAudience bool `json:"hubAudience,omitempty"`
	// Mapping maps accounts of the hub to identities; the first matching rule wins. An account without a rule may
	// do nothing.
	Mapping []Rule `json:"mapping,omitempty"`
}

// Rule maps an account of the hub to an identity.
type Rule struct {
	// User is a user name of the hub, for example system:serviceaccount:<namespace>:<name>. A rule has either user
	// or group.
	User string `json:"user,omitempty"`
	// Group is a group of the hub, for example system:bootstrappers:managedcluster. A rule has either user or
	// group.
	Group string `json:"group,omitempty"`
	// Role is bootstrap, source, operator or viewer. Required. A token cannot give the role agent.
	Role identity.Role `json:"role"`
	// Name is the source id of a source, or any name of an operator or viewer. For bootstrap it may be empty, which
	// means the user name.
	Name string `json:"name,omitempty"`
}

// Enabled reports whether tokens are configured.
func (c Config) Enabled() bool { return len(c.Audiences) > 0 || c.HubAudience || len(c.Mapping) > 0 }

// universalGroups are groups that every account of a hub is in.
var universalGroups = []string{"system:authenticated", "system:unauthenticated", "system:serviceaccounts"}

// Validate returns an error for a configuration that could never work, or would accept every account.
func (c Config) Validate() error {
	switch {
	case !c.Enabled():
		return nil
	case len(c.Audiences) == 0 && !c.HubAudience:
		return errors.New("audiences is empty: name that of the tokens, as hawser")
	case slices.Contains(c.Audiences, ""):
		return errors.New("an audience is empty: leave it out")
	case len(c.Mapping) == 0:
		return errors.New("mapping is empty: add a rule for each account; an account without a rule has no rights")
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
	case slices.Contains(universalGroups, r.Group):
		return fmt.Errorf("every account of the hub is in group %s: use another one", r.Group)
	case r.Role == identity.Agent:
		return errors.New("a token cannot give the role agent, which needs a certificate; use bootstrap for accounts that let clusters join")
	case r.Role != identity.Bootstrap && r.Role != identity.Source && r.Role != identity.Operator && r.Role != identity.Viewer:
		return fmt.Errorf("role is %q, use bootstrap, source, operator or viewer", r.Role)
	case r.Name == "" && r.Role != identity.Bootstrap:
		return fmt.Errorf("name is empty, set the %s's name", r.Role)
	}
	return nil
}

// identify returns the identity of an account. It returns false if no rule matches.
func (c Config) identify(user string, groups []string) (identity.Identity, bool) {
	for _, r := range c.Mapping {
		if r.User != "" && r.User == user || r.Group != "" && slices.Contains(groups, r.Group) {
			return identity.Identity{Role: r.Role, Name: cmp.Or(r.Name, user)}, true
		}
	}
	return identity.Identity{}, false
}
