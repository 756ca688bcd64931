package architecture

import "regexp"

// This file contains only the list of words and phrases that the tree must not contain. docs/glossary.md has the
// words to use. The checks skip this file and its test.

// unusedWord is a word that no name may contain, in all its inflections, with its replacement.
type unusedWord struct{ words, use string }

// unusedWords is checked in identifiers, file names, strings without a space, inline code, and
// identifiers that a text mentions. splitIdentifier splits them, and the words are compared.
var unusedWords = []unusedWord{
	// Metaphors.
	{"grave graves", "confirmed tombstone"},
	{"bury buries buried burying burial burials", "confirm a tombstone, track a deletion"},
	{"entomb entombs entombed entombing", "create a tombstone"},
	{"dig digs dug digging", "write a confirmed tombstone"},
	{"revive revives revived", "undelete"},
	{"stray strays strayed straying", "orphan"},
	{"ownerless nameless", "unowned orphan"},
	{"lacking", "orphan, pending"},
	{"unexplained", "orphan"},
	{"condemned graced anothers", "state of an orphan"},
	{"reprieve reprieves pardon pardons", "stop the grace period"},
	{"doubt doubts doubted doubting doubtful", "rollback suspicion, unconfirmed"},
	{"distrust distrusts distrusted", "rollback suspicion"},
	{"vouch vouches vouched vouching voucher vouchers", "sync, confirm, sign"},
	{"desk desks", "request queue"},
	{"mailbox mailboxes", "delivery queue"},
	{"room rooms", "component, capacity, space"},
	{"mirror mirrors mirrored mirroring", "hub cache"},
	{"life lives", "hub epoch, lifetime"},
	{"void voids voided", "stale session, invalid"},
	{"farewell farewells", "goodbye, last will"},
	{"greet greets greeted greeting greetings", "session notice"},
	{"stint stints lonely deaf heed heeds", "a word of the field"},
	{"overrule overrules overruled", "force"},
	{"anew", "again"},
	// Persons.
	{"party parties", "client"},
	{"stranger strangers", "quarantined cluster, unidentified connection"},
	{"nobody somebody anybody everybody", "the client, the caller, none"},
	{"who whom whose whoever", "the client, the caller"},
	{"keeper keepers", "store, persister"},
	{"teller tellers", "event recorder"},
	{"asker askers", "requester"},
	{"witness witnesses", "commit hook, consistency"},
	// Hearing and telling.
	{"heard unheard hear hears hearing", "seen, received, connected"},
	{"tell tells telling told untold retell retold", "report, send, notify"},
	{"unsay unsaid", "clear"},
	// Adjectives of nothing.
	{"far", "remote agent"},
	{"plain plains plainly", "stateless broker"},
	{"standing", "peer state, connected"},
	{"stock", "OCM client, third-party"},
	{"bus", "stateless broker"},
	// A word of four former types.
	{"verdict verdicts", "result"},
}

// knownNames matches established names that contain one of the words above.
const knownNames = `(?i)third[-_ ]?part(y|ies)|text/plain|zoo-?keeper`

// watchedWords are counted only. Each is a word of the field in one place and dialect in another.
var watchedWords = []string{
	"said", "say", "says", "ask", "asks", "line", "lines", "place", "places", "link", "links", "turn", "turns",
	"word", "rest", "rests", "silent", "silence", "alive", "presence", "claims", "lost", "what",
}

// phrase is an expression that the tree must not contain. It is a regular expression that ignores case. A match
// that overlaps a match of except is plain English, and is allowed.
type phrase struct{ old, use, except string }

// phrases is checked in comments, strings, pages with their tables and code, and other files.
var phrases = []phrase{
	// Words without another meaning here.
	{`\bgraves?\b`, "confirmed tombstone", ``},
	{`\b(bury|buries|buried|burying|burials?)\b`, "confirm a tombstone", ``},
	{`\bentomb\w*`, "create a tombstone", ``},
	{`\b(digs?|dug)\b`, "write a confirmed tombstone", `\bdig [@+]|\bdig \w+\.`},
	{`\bstray(s|ed|ing)?\b`, "orphan", `stray (arguments?|bytes?|commas?|quotes?|before)\b`},
	{`\bownerless\b|\bnameless\b`, "unowned orphan", ``},
	{`\bunexplained\b`, "orphan", ``},
	{`\b(condemned|graced|reprieve[sd]?|pardon(s|ed)?)\b`, "state of an orphan", ``},
	{`\bdistrust\w*`, "rollback suspicion", ``},
	{`\b(vouch\w*)\b`, "sync, confirm, sign", ``},
	{`\b(desks?)\b`, "request queue", `help desk`},
	{`\bmailbox(es)?\b`, "delivery queue", ``},
	{`\bfarewells?\b`, "goodbye, last will", ``},
	{`\bgreet(s|ed|ings?)?\b`, "session notice", ``},
	{`\boverrul\w+`, "force", ``},
	{`\banew\b`, "again", ``},
	{`\b(keepers?|tellers?|askers?)\b`, "the name of the part", ``},
	{`\bwitness(es)?\b`, "commit hook, proof, confirmation", ``},
	{`\b(un|over)?hear(s|d|ing)?\b`, "seen, received, connected", ``},
	{`\bverdicts?\b`, "result", ``},
	{`\b(un|re)?told\b`, "reported, sent, notified", ``},
	// Persons.
	{`\bpart(y|ies)\b`, "client", `third[- ]part(y|ies)`},
	{`\bstrangers?\b`, "quarantined cluster, unidentified connection", `stranger than`},
	{`\b(nobody|somebody|anybody|everybody)('s)?\b`, "the client, the caller, none", ``},
	{`\bwhoever\b`, "the client, the caller", ``},
	// Plain English, except in these phrases.
	{`(^|[.:;] |\()far (is|are|was)\b|\b(a|the|each|its|every|one|no) far\b|\[far\]`, "remote agent",
		`\b(a|the|one|no) far (ahead|more|less|end|side|too|better|worse|higher|lower|smaller|larger|future)\b`},
	{`\bplain (\w+ )?(brokers?|part(y|ies)|agents?|sources?)\b|\bplains\b|\bpackage plain\b|\b(internal|core)/plain\b|\]?\.plain\b|^plain (is|are)\b|\bsays plain\b|\(plain\)`,
		"stateless broker", ``},
	{`\bbrokers?\b[^.;:,]{0,12} keeps? (nothing|anything)|\b(no broker|nobody) keeps? anything|\bkeeps? nothing between\b`, "stateless broker", `(broker|it) keeps nothing of`},
	{`\bstock\b`, "OCM client, third-party", `(in|out of) stock|stock of`},
	{`\bmirror(s|ed|ing)?\b`, "hub cache", `(registry|image|package|module|download) mirrors?|mirror (pod|registry|site)s?`},
	{`^standing (is|are|hears|returns|implements)|[[.]standing\b|\b(those of|changes of the|one for the) standing\b|\bthe standing( (one|is|of|and)|:|;|,|$)|\bhow the \w+ stands\b`,
		"peer state, connected", ``},
	{`\bdoubt(s|ed|ing|ful)?\b`, "rollback suspicion, unconfirmed", `(when|if) in doubt|without( a)? doubt|beyond doubt`},
	{`\b(a|this|that|the|each|every|one|other|another|new|next|present|earlier|former|older|later|before|no|all) (li(fe|ves) of (a |the |its )?hubs?|li(fe|ves) (is over|ends|begins?|began|has ended|before))\b|` +
		`\b(new|next|present|earlier|former|another|other|this|each) li(fe|ves)\b|\blives of (a|the) hub\b|\blife \(?n ?\+|\blife(/| and )subscription\b|\blife or subscription\b|` +
		`^li(fe|ves) (is|are|counts?)\b|\b(a|that|which|the) life (shows?|all|a generation|of the core|that the effect)\b|\b(counts the|its) lives\b|\blives\.go\b|\bwith life\b`,
		"hub epoch", `life of a (connection|certificate|token)`},
	{`\brooms\b|\b(a|each|this|which|its) room (of|is|for registration|handles|has)\b`, "component", ``},
	{`\b(an|the|each|every|its|one|such|no|other) ask\b|\bwhere asks\b|\basks (wait|are|of a)\b|\[asks?\]`, "request", ``},
	{`\b(make|makes|made|is|are|was|were|becomes?|(made|makes) it) void\b|\bvoid (if|when|with|gives)\b|^void\b|\bvoids\b`, "stale session, discarded", ``},
	{`\bcounts? no (more|longer)\b|\bdoes not count any ?more\b`, "is ignored, is rejected", ``},
	{`\b(agent|broker|hub|source|cluster|party|operator|person)s?'s? (own )?word\b|\bwithout a word\b|\bno word of\b|\b(on|takes?) (the|its|their) word\b|\b(its|last|next) word (is|counts|of|came)\b`,
		"report, statement", ``},
	{`\btell(s|ing)? (the |a |an |its |each |every |all |both |other |which |no )?(brokers?|sources?|agents?|hubs?|clients?|clusters?|senders?|owners?|callers?|operators?|router|people)\b`,
		"report to, notify", `apart`},
	{`\bcertificates?('s)?( of \w+)? (end|ends|ended)\b|\bcertificate that ends\b|\bcertificates?\b[^.;:,]{0,30} near (its|their) end\b`, "expires, notAfter", ``},
	{`\bnot dare\b|\bdares? (not|to)\b`, "withheld deletion", ``},
	{`\bleft to a person\b`, "withheld deletion", ``},
	{`\btorn off\b`, "removed without its finalizer", ``},
	{`\bbus (loses|delays|duplicates|forgets|restarts|seeds?)\b|\bthe bus\b|\bshape: bus\b`, "stateless broker", ``},
	// Ways to put it.
	{takesItThat, "records that", ``},
	{`\btak(e|es|en|ing) note (that|of)\b`, "records", ``},
	{inThePlaceOf, "instead of, replaces", ``},
}

// These two patterns have names, because PrintCounts also counts them alone.
const (
	takesItThat  = `\b(take|takes|taken|taking|took) it that\b`
	inThePlaceOf = `\bin (the|its|their|whose) places? of\b|\bin (its|their|his|whose) place\b`
)

// counted lists the phrases that PrintCounts counts alone.
var counted = []struct {
	name, target string
	pattern      *regexp.Regexp
}{
	{"nobody", "", regexp.MustCompile(`(?i)\bnobody\b`)},
	{"somebody", "", regexp.MustCompile(`(?i)\bsomebody\b`)},
	{"whoever", ": target 0", regexp.MustCompile(`(?i)\bwhoever\b`)},
	{"takes it that", ": target 0", regexp.MustCompile(`(?i)` + takesItThat)},
	{"in the place of, in its place", ": target 0", regexp.MustCompile(`(?i)` + inThePlaceOf)},
}

// freeSubject is a pronoun that needs a noun before it, or a verb that begins an indirect question.
const freeSubject = "who"

// freeSubject is allowed directly after one of these.
var (
	// antecedents are nouns for persons and programs: "operators who".
	antecedents = []string{
		"those", "people", "person", "persons", "someone", "anyone", "everyone", "one", "user", "users", "operator", "operators",
		"administrator", "administrators", "admin", "admins", "attacker", "attackers", "reader", "readers", "reviewer", "reviewers",
		"author", "authors", "developer", "developers", "maintainer", "maintainers", "owner", "owners", "team", "teams", "thief",
		"nobody", "somebody", "anybody", "everybody", // a phrase of their own
	}
	// questionVerbs begin an indirect question: "the log shows who asked".
	questionVerbs = []string{
		"say", "says", "said", "show", "shows", "shown", "know", "knows", "known", "knew", "decide", "decides", "decided",
		"see", "sees", "ask", "asks", "asked", "find out", "finds out", "finding out", "found out",
	}
)

// keptWord allows an old word in one file, such as a reader of data from an earlier release, or the changelog.
type keptWord struct{ path, word, why string }

var keptWords = []keptWord{
	{".golangci.yml", "revive", "the name of a linter"},
	{"internal/broker/former_test.go", "unheard", "the id of a work in the store of a former broker"},
	{"internal/broker/store/pebble/format_test.go", "lives", "the id of a work in testdata/format-1"},
	{"pkg/agent/former_test.go", "stray", "the name of an AppliedManifestWork of a former agent"},
	{"docs/upgrade.md", "ownerless", "the table of former names"},
	{"docs/upgrade.md", "graves", "the table of former names"},
	{"docs/upgrade.md", "mailbox", "the table of former names"},
	{"docs/upgrade.md", "overruled", "the table of former names"},
	{"docs/upgrade.md", "room", "the table of former names"},
	{"docs/upgrade.md", "unheard", "the table of former names"},
	{"docs/upgrade.md", "life", "the table of former names"},
	{"docs/upgrade.md", "heard", "the table of former names"},
	{"docs/upgrade.md", "stock", "the table of former names"},
	{"docs/upgrade.md", "void", "the table of former names"},
	{"docs/upgrade.md", "verdict", "the table of former names"},
	{"docs/upgrade.md", "strangers", "the table of former names"},
	{"docs/upgrade.md", "unexplained", "the table of former names"},
	{"docs/upgrade.md", "party", "the table of former names"},
	{"docs/upgrade.md", "parties", "the table of former names"},
	{"docs/upgrade.md", "stranger", "the table of former names"},
}
