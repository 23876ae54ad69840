int this_line_is_wrong = "text";
