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

// The words of states, causes and healths. A state has one spelling, that of conditions in Kubernetes: in
// tables, in JSON, as the value of a flag, as the label of a metric, and on the pages.
var (
	clusterWords = []string{"InSync", "Syncing", "Failing", "OutOfSync", "Unverified", "Disconnected", "Rejected", "NeverConnected", notAccepted, notOnHub} // in the order of the summary
	workWords    = []string{"Live", "Deleting", "Deleted"}
	healthWords  = []string{"Available", "Applied", "NotApplied", "NotAvailable", unknownHealth, notReported}
	causeWords   = []string{"Orphan", "Ahead", "Withheld", "Quarantined", "Unowned", "Shared"}
)

const (
	// unknownHealth is that of a work whose last status says nothing of it, or whose cluster cannot be asked;
	// notReported that of one that had no status yet.
	unknownHealth, notReported = "Unknown", "NotReported"

	notAccepted = "NotAccepted"
	// notOnHub is the state of a cluster that the hub does not have, where clusters join it.
	notOnHub = "NotOnHub"
)

// wordOf is the word of a value.
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

// healthWord is what the last status of a work says; empty of a work that is deleted.
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

// choose adds a flag that takes one or several of some words.
func choose(cmd *cobra.Command, into *[]string, flag, usage string, words []string) {
	cmd.Flags().StringSliceVar(into, flag, nil, usage+", repeated or separated by commas: "+strings.Join(words, ", "))
	complete(cmd, flag, fixed(words...))
}

// someOf says what is wrong with the values of a flag that takes some words. It writes them as they are
// shown: of the case and of dashes a person need not think.
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

// wanted tells whether a word is one of those that were asked for; none asks for all.
func wanted(words []string, name string) bool {
	return len(words) == 0 || slices.Contains(words, name)
}

// once is the value of a flag that is given once. Of two values one would be lost without a word.
type once struct {
	pflag.Value
	name  string
	given *string
}

func (o *once) Set(v string) error {
	if o.given != nil && *o.given != v { // the same may be parsed again, as where words are completed
		return fmt.Errorf("--%s is given twice, as %s and as %s: give it once", o.name, *o.given, v)
	}
	o.given = &v
	return o.Value.Set(v)
}

// giveOnce refuses flags of a verb that are given twice, those that take several values aside.
func giveOnce(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if _, several := f.Value.(pflag.SliceValue); !several {
			f.Value = &once{Value: f.Value, name: f.Name}
		}
	})
}
