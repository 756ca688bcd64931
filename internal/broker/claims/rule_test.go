package claims

import "testing"

// TestDecide: the one rule about a record of which an agent listed a version.
func TestDecide(t *testing.T) {
	for name, c := range map[string]struct {
		of   Case
		want DeliveryDecision
	}{
		"the record is newer":                       {Case{Listed: 4, Version: 5}, Send},
		"the same version":                          {Case{Listed: 5, Version: 5}, Send},
		"the record has no version":                 {Case{Listed: 5, Version: 0}, Send},
		"it superseded a newer one":                 {Case{Listed: 5, Version: 4, Supersedes: true}, Send},
		"the agent is ahead":                        {Case{Listed: 5, Version: 4}, Wait},
		"the agent is ahead, its source compared":   {Case{Listed: 5, Version: 4, Vouched: true}, Force},
		"the agent is ahead of a deletion in force": {Case{Listed: 5, Version: 4, InForce: true}, Force},
		"both": {Case{Listed: 5, Version: 4, Vouched: true, InForce: true}, Force},
		"the source compared, and the record is newer": {Case{Listed: 4, Version: 5, Vouched: true}, Send},
		"a deletion in force that is newer":            {Case{Listed: 4, Version: 5, InForce: true}, Send},
		"in force, superseding":                        {Case{Listed: 5, Version: 4, Supersedes: true, InForce: true}, Send},
	} {
		if got := Decide(c.of); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
