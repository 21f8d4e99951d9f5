autocmd BufNewFile,BufRead *.tg setfiletype tg
