package program

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
)

// The commands.
const (
	commandServe     = "serve"
	commandCheck     = "check"
	commandTop       = "top"
	commandWhy       = "why"
	commandReference = "metrics-reference"
	commandGateway   = "gateway"
)

// flagGroup is a group of flags that --help shows under one title, and the commands that use them.
// serve uses all groups.
type flagGroup struct {
	app   *kingpin.Application
	title string
	users []string // commands besides serve
	names []string

	durations map[string]*time.Duration // by flag
}

// addFlag adds a flag that sets what to points to. value is the default, or several ones separated
// by spaces; =WORD is none, and what stands for the value in the help.
type addFlag = func(name, value string, to any, help string)

// add is an [addFlag].
func (g *flagGroup) add(name, value string, to any, help string) {
	if d, ok := to.(*time.Duration); ok {
		g.durations[name] = d
	}
	addTo(g)(name, value, to, help)
}

// addTo returns a function that adds flags to a group or a command.
func addTo(of interface {
	Flag(name, help string) *kingpin.FlagClause
},
) addFlag {
	return func(name, value string, to any, help string) {
		flag := of.Flag(name, help)
		if hint, none := strings.CutPrefix(value, "="); none {
			flag.PlaceHolder(hint)
		} else if value != "" {
			flag.Default(strings.Fields(value)...)
		}
		switch to := to.(type) {
		case *bool:
			flag.BoolVar(to)
		case *int:
			flag.IntVar(to)
		case *float64:
			flag.Float64Var(to)
		case *time.Duration:
			flag.DurationVar(to)
		case *[]string:
			flag.StringsVar(to)
		case *string:
			flag.StringVar(to)
		}
	}
}

// Flag adds a flag to the group.
func (g *flagGroup) Flag(name, help string) *kingpin.FlagClause {
	g.names = append(g.names, name)
	return g.app.Flag(name, help)
}

// usedBy reports whether a command uses the group; "" is the program without a command.
func (g *flagGroup) usedBy(command string) bool {
	return command == "" || command == commandServe || slices.Contains(g.users, command)
}

// group adds a group of flags.
func (o *options) group(app *kingpin.Application, title string, users ...string) *flagGroup {
	g := &flagGroup{app: app, title: title, users: users, durations: map[string]*time.Duration{}}
	o.groups = append(o.groups, g)
	return g
}

// usage is the template of --help.
const usage = `usage: {{.App.Name}}
{{- if .Context.SelectedCommand}} {{.Context.SelectedCommand.FullCommand}} [<flags>]

{{.Context.SelectedCommand.Help|Wrap 0}}
{{- else}} [<flags>] [<command>]

{{.App.Help|Wrap 0}}
Commands:
{{CommandRows .App.Commands|FormatTwoColumns}}
{{"A flag is also an environment variable: DRA_EXPORTER_ and its name in upper case, _ for dots and dashes."|Wrap 0}}
{{- end -}}
{{range Sections .Context.SelectedCommand .Context.Flags}}
{{.Title}}:
{{.Rows|FormatTwoColumns}}
{{- end}}`

// section is a part of the output of --help.
type section struct {
	Title string
	Rows  [][2]string
}

// sections returns the groups of a command, its own flags first. Groups with the same title become
// one section.
func (o *options) sections(command *kingpin.CmdModel, flags []*kingpin.FlagModel) []section {
	name := ""
	if command != nil {
		name = command.Name
	}
	own := section{Title: "Flags"}
	grouped := make([]section, len(o.groups))
	for _, f := range flags {
		if f.Hidden {
			continue
		}
		in := slices.IndexFunc(o.groups, func(g *flagGroup) bool { return slices.Contains(g.names, f.Name) })
		switch {
		case in < 0:
			own.Rows = append(own.Rows, flagRow(f))
		case o.groups[in].usedBy(name):
			title := o.groups[in].title
			first := slices.IndexFunc(o.groups, func(g *flagGroup) bool { return g.title == title })
			grouped[first].Title = title
			grouped[first].Rows = append(grouped[first].Rows, flagRow(f))
		}
	}
	return slices.DeleteFunc(append([]section{own}, grouped...), func(s section) bool { return len(s.Rows) == 0 })
}

// flagRow returns a flag and its help.
func flagRow(f *kingpin.FlagModel) [2]string {
	name := "--" + f.Name
	switch {
	case f.IsBoolFlag() && slices.Equal(f.Default, []string{"true"}):
		name = "--[no-]" + f.Name
	case !f.IsBoolFlag():
		name += "=" + f.FormatPlaceHolder()
	}
	if f.Short != 0 {
		name = fmt.Sprintf("-%c, %s", f.Short, name)
	}
	return [2]string{name, f.Help}
}

// commandRows returns the commands and their help.
func commandRows(commands []*kingpin.CmdModel) [][2]string {
	rows := make([][2]string, 0, len(commands))
	for _, c := range commands {
		if c.Hidden {
			continue
		}
		rows = append(rows, [2]string{c.Name, c.Help})
	}
	return rows
}
