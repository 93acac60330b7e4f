package grafana

// fact is a number.
func fact(width, height uint32, title, description, unit, noData, expr string, steps ...step) Panel {
	return Panel{
		Title: title, Description: description, Kind: Stat, Unit: unit, NoData: noData, Targets: []Target{{Expr: expr}},
		Width: width, Height: height, steps: steps,
	}
}

// line is a graph of half the width.
func line(title, description, unit, noData, legend, expr string) Panel {
	return Panel{
		Title: title, Description: description, Kind: Graph, Unit: unit, NoData: noData, Width: 12, Height: 8,
		Targets: []Target{{Expr: expr, Legend: legend}},
	}
}

func tableOf(title, description, noData string, width, height uint32, targets ...Target) Panel {
	return Panel{
		Title: title, Description: description, Kind: Table, NoData: noData, Width: width, Height: height, Targets: targets,
	}
}

// ranked is a table that is sorted by a column, the highest first, of some of its rows; 0: all.
func ranked(
	column string, limit int, title, description, noData string, width, height uint32, targets ...Target,
) Panel {
	p := tableOf(title, description, noData, width, height, targets...)
	p.sort, p.limit = column, limit
	return p
}

// columnOf is the query of a column of a table.
func columnOf(title, unit, expr string) Target { return Target{Expr: expr, Column: title, Unit: unit} }

// labelsOf is a query of which a table shows the labels.
func labelsOf(expr string) Target { return Target{Expr: expr} }

// total marks a panel whose values are of several devices.
func (p Panel) total() Panel {
	p.Total = true
	return p
}

// optional marks a panel that may be empty although nothing is wrong: NoData says what is right then.
func (p Panel) optional() Panel {
	p.MayBeEmpty = true
	return p
}

// linked returns the panel with the dashboard that a click opens.
func (p Panel) linked(uid string) Panel {
	p.link = uid
	return p
}

// precise returns the panel with a number of decimals.
func (p Panel) precise(decimals int) Panel {
	p.decimals = decimals
	return p
}

// upTo returns the panel with an axis from 0 to a value.
func (p Panel) upTo(most float64) Panel {
	p.max = most
	return p
}

// from returns the panel with thresholds.
func (p Panel) from(steps ...step) Panel {
	p.steps = steps
	return p
}
