package architecture

import (
	"regexp"
	"strings"
)

var (
	fenceLine    = regexp.MustCompile("^\\s*(?:>\\s*)*(?:[-*+]\\s+)?(```+|~~~+)")
	tableLine    = regexp.MustCompile(`^\s*\|`)
	headingLine  = regexp.MustCompile(`^\s{0,3}#{1,6}\s+`)
	quoteMark    = regexp.MustCompile(`^\s*>\s?`)
	htmlComment  = regexp.MustCompile(`(?s)<!--.*?-->`)
	inlineCode   = regexp.MustCompile("``[^`]+``|`[^`]+`")
	linkTarget   = regexp.MustCompile(`!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])`)
	linkRef      = regexp.MustCompile(`^\s{0,3}\[[^\]]+\]:\s`)
	autoLink     = regexp.MustCompile(`<?https?://[^\s>)]+>?`)
	htmlTag      = regexp.MustCompile(`</?[a-zA-Z][^>]*>`)
	indentedCode = regexp.MustCompile(`^(?: {4,}|\t)`)
)

// markdownTexts returns the paragraphs, list items and headings of a page, the rows of its tables, and the
// lines of its code blocks. It also returns inline code, as names. The prose omits inline code and link
// targets. A list item ends where the next begins, so it counts as a sentence.
func markdownTexts(path string, src []byte) []text {
	page := &markdownPage{path: path}
	lines := strings.Split(blankComments(string(src)), "\n")
	if len(lines) > 0 && lines[0] == "---" { // front matter
		for i := 1; i < len(lines); i++ {
			if lines[i] == "---" {
				clear(lines[:i+1])
				break
			}
		}
	}
	for i, line := range lines {
		page.read(i+1, line)
	}
	page.end()
	return page.texts
}

// blankComments replaces HTML comments by their line breaks, so that line numbers stay.
func blankComments(src string) string {
	return htmlComment.ReplaceAllStringFunc(src, func(c string) string {
		return strings.Repeat("\n", strings.Count(c, "\n"))
	})
}

// markdownPage holds the state of reading a page line by line.
type markdownPage struct {
	path  string
	texts []text

	fence  string // the mark that closes the code block, "" outside of one
	block  []string
	begin  int  // line of the block's first line
	inList bool // a list is open, so indented lines are no code
	blank  bool // the previous line was empty
}

func (p *markdownPage) read(number int, line string) {
	line = strings.TrimRight(line, " \t\r")
	if p.fence != "" {
		if strings.HasPrefix(strings.TrimLeft(line, " \t>"), p.fence) {
			p.fence = ""
			return
		}
		p.add(number, kindCode, strings.TrimSpace(line))
		return
	}
	if m := fenceLine.FindStringSubmatch(line); m != nil {
		p.end()
		p.fence = m[1]
		return
	}
	line = quoteMark.ReplaceAllString(line, "")
	blank := p.blank
	p.blank = line == ""
	switch {
	case line == "" || linkRef.MatchString(line):
		p.end()
	case headingLine.MatchString(line):
		p.end()
		p.inList = false
		p.begin, p.block = number, []string{headingLine.ReplaceAllString(line, "")}
		p.end()
	case tableLine.MatchString(line):
		p.end()
		p.inline(number, kindCell, strings.Trim(line, "| "))
	case listItem.MatchString(line):
		p.end()
		p.inList = true
		p.begin, p.block = number, []string{listItem.ReplaceAllString(line, "")}
	case indentedCode.MatchString(line) && len(p.block) == 0 && !p.inList:
		p.add(number, kindCode, strings.TrimSpace(line))
	case len(p.block) == 0:
		p.inList = p.inList && !(blank && line[0] != ' ' && line[0] != '\t')
		p.begin, p.block = number, []string{line}
	default:
		p.block = append(p.block, line)
	}
}

// end closes the open block.
func (p *markdownPage) end() {
	if len(p.block) > 0 {
		p.inline(p.begin, kindProse, strings.Join(p.block, "\n"))
		p.block = nil
	}
}

// inline adds a text without its inline code and link targets. It adds the code as names.
func (p *markdownPage) inline(number int, k kind, body string) {
	for _, code := range inlineCode.FindAllString(body, -1) {
		p.add(number, kindCode, strings.Trim(code, "`"))
	}
	if body = stripInline(body); strings.ContainsFunc(body, isWordRune) {
		p.add(number, k, body)
	}
}

func (p *markdownPage) add(number int, k kind, body string) {
	if body != "" {
		p.texts = append(p.texts, text{p.path, number, k, body})
	}
}

// stripInline returns the visible text of a paragraph: without code, link targets, addresses and marks.
func stripInline(body string) string {
	body = inlineCode.ReplaceAllString(body, codeMark)
	body = linkTarget.ReplaceAllString(body, "$1")
	body = autoLink.ReplaceAllString(body, codeMark)
	body = htmlTag.ReplaceAllString(body, " ")
	body = strings.NewReplacer("**", "", "__", "", "\\", "").Replace(body)
	return strings.Join(strings.Fields(body), " ")
}
