package syncstate

import "testing"

// TestDecide checks the rule for a record and the version that an agent listed.
func TestDecide(t *testing.T) {
	for name, c := range map[string]struct {
		of   Conflict
		want DeliveryDecision
	}{
		"the record is newer":                       {Conflict{Listed: 4, Version: 5}, Send},
		"the same version":                          {Conflict{Listed: 5, Version: 5}, Send},
		"the record has no version":                 {Conflict{Listed: 5, Version: 0}, Send},
		"it superseded a newer one":                 {Conflict{Listed: 5, Version: 4, Supersedes: true}, Send},
		"the agent is ahead":                        {Conflict{Listed: 5, Version: 4}, Wait},
		"the agent is ahead, its source compared":   {Conflict{Listed: 5, Version: 4, Synced: true}, Force},
		"the agent is ahead of a deletion in force": {Conflict{Listed: 5, Version: 4, InForce: true}, Force},
		"both": {Conflict{Listed: 5, Version: 4, Synced: true, InForce: true}, Force},
		"the source compared, and the record is newer": {Conflict{Listed: 4, Version: 5, Synced: true}, Send},
		"a deletion in force that is newer":            {Conflict{Listed: 4, Version: 5, InForce: true}, Send},
		"in force, superseding":                        {Conflict{Listed: 5, Version: 4, Supersedes: true, InForce: true}, Send},
	} {
		if got := ResolveConflict(c.of); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
