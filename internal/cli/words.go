package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/reflect/protoreflect"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// The words of states, causes and healths. A state has one spelling, that of Kubernetes conditions. It is used
// in tables, JSON, flag values, metric labels and pages.
var (
	clusterWords = []string{"InSync", "Syncing", "Failing", "OutOfSync", "Unverified", "Disconnected", "Rejected", "NeverConnected", notAccepted, notOnHub} // in the order of the summary
	workWords    = []string{"Live", "Deleting", "Deleted"}
	healthWords  = []string{"Available", "Applied", "NotApplied", "NotAvailable", unknownHealth, notReported}
	causeWords   = []string{"Orphan", "Ahead", "Withheld", "Quarantined", "Unowned", "Shared"}
)

const (
	// unknownHealth: the last status has no health, or the cluster is unreachable. notReported: the work has no
	// status yet.
	unknownHealth, notReported = "Unknown", "NotReported"

	notAccepted = "NotAccepted"
	// notOnHub is the state of a cluster that the hub does not have, on a hub with registration.
	notOnHub = "NotOnHub"
)

// wordOf returns the word of an enum value.
func wordOf(v protoreflect.Enum) string { return camel(v.Descriptor(), v.Number()) }

func clusterWord(m *hawserv1.ListClustersResponse) string {
	switch {
	case m.GetRegistration().GetNotOnHub():
		return notOnHub
	case waitsForHub(m):
		return notAccepted
	}
	return wordOf(m.GetState())
}

func stateWord(m *hawserv1.ListWorksResponse) string {
	switch m.GetState() {
	case hawserv1.WorkState_WORK_STATE_DELETING:
		return "Deleting"
	case hawserv1.WorkState_WORK_STATE_DELETED:
		return "Deleted"
	case hawserv1.WorkState_WORK_STATE_LIVE, hawserv1.WorkState_WORK_STATE_UNSPECIFIED:
	}
	return wordOf(m.GetState())
}

// healthWord returns the health in the last status of a work; empty for a deleted work.
func healthWord(m *hawserv1.ListWorksResponse) string {
	switch {
	case m.GetState() != hawserv1.WorkState_WORK_STATE_LIVE:
		return ""
	case !m.GetReported():
		return notReported
	case m.GetHealth() == hawserv1.WorkHealth_WORK_HEALTH_UNSPECIFIED:
		return unknownHealth
	}
	return wordOf(m.GetHealth())
}

// choose adds a flag that accepts one or several of some words.
func choose(cmd *cobra.Command, into *[]string, flag, usage string, words []string) {
	cmd.Flags().StringSliceVar(into, flag, nil, usage+", repeated or separated by commas: "+strings.Join(words, ", "))
	complete(cmd, flag, fixed(words...))
}

// someOf returns an error for invalid values of a flag that accepts some words. It rewrites values to the shown
// spelling: case and dashes are irrelevant.
func someOf(cmd *cobra.Command, flag string, values, words []string) error {
	simple := strings.NewReplacer("-", "", "_", "", " ", "")
	for i, v := range values {
		at := slices.IndexFunc(words, func(w string) bool { return strings.EqualFold(simple.Replace(v), w) })
		if at < 0 {
			return usageOf(cmd, fmt.Errorf("--%s %s: use one of %s", flag, v, strings.Join(words, ", ")))
		}
		values[i] = words[at]
	}
	return nil
}

// wanted reports whether a word is one of the requested ones; no words request all.
func wanted(words []string, name string) bool {
	return len(words) == 0 || slices.Contains(words, name)
}

// once is the value of a flag that may be given once. Otherwise the first of two values would be lost silently.
type once struct {
	pflag.Value
	name  string
	given *string
}

func (o *once) Set(v string) error {
	if o.given != nil && *o.given != v { // the same value may be parsed again, for instance in a completion
		return fmt.Errorf("--%s is given twice, as %s and as %s: give it once", o.name, *o.given, v)
	}
	o.given = &v
	return o.Value.Set(v)
}

// giveOnce rejects flags of a verb that are given twice, except those with several values.
func giveOnce(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if _, several := f.Value.(pflag.SliceValue); !several {
			f.Value = &once{Value: f.Value, name: f.Name}
		}
	})
}
